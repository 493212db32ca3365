// Keyboard navigation from request to request, and the text for screen readers.

import { segmentAt } from "./model.js";
import { clock, count, lasting } from "./time.js";

/** The next request from `number` (-1: none yet), by row or within a row, among those in the range; -1 if there is none. */
export function stepped(model, number, place, { rows = 0, within = 0 }) {
  const { begin, end } = model.requests;
  const isShown = (each) => end[each] >= place.from && begin[each] <= place.to;
  const open = openRows(model);
  if (number < 0 || !open.includes(model.row[number])) {
    for (const row of open) {
      const first = model.inRow[row].find(isShown);
      if (first !== undefined) return first;
    }
    return -1;
  }
  if (!rows && !within) return number;
  const inRow = model.inRow[model.row[number]];
  if (within) return inRow[inRow.indexOf(number) + within] ?? number;
  const middle = (Math.max(begin[number], place.from) + Math.min(end[number], place.to)) / 2;
  const away = (each) => Math.max(begin[each] - middle, middle - end[each], 0);
  for (let n = open.indexOf(model.row[number]) + rows; n >= 0 && n < open.length; n += rows) {
    const shown = model.inRow[open[n]].filter(isShown);
    if (shown.length > 0) return shown.reduce((best, each) => (away(each) < away(best) ? each : best));
  }
  return number;
}

/** The rows of unfolded engines. */
function openRows(model) {
  return model.heads.flatMap(({ first, rows, isFolded }) => (isFolded ? [] : Array.from({ length: rows }, (_, n) => first + n)));
}

/** The number of the same request in another model; -1 if it is not there. */
export function sameRequest(before, number, model) {
  if (number < 0) return -1;
  const { request, engine } = before.requests;
  return model.requests.request.findIndex((each, n) => each === request[number] && model.requests.engine[n] === engine[number]);
}

/** The same finding in another model; null if it is not there. */
export function sameMark(before, mark, model) {
  const moment = before.origin + mark.at;
  return model.marks.find((m) => m.rule === mark.rule && Math.abs(m.at + model.origin - moment) < 0.01) ?? null;
}

/** The text of a request: its name, its problems, and its phase at a moment (or at its end). */
export function described(model, number, at = null) {
  const { external, request, status, verdict, findings, begin, end, is_open, is_unsure, complete, connector } = model.requests;
  const doing = at === null ? null : segmentAt(model, number, at);
  const soFar = is_unsure[number] ? "seen for" : is_open[number] ? "so far" : "lasted";
  return {
    title: external[number] || request[number],
    wrong: [
      model.isLost[number] && "lost when its engine died",
      findings[number] > 0 && count(findings[number], "finding"),
      (!complete[number] || is_unsure[number]) && "spans are missing: more is not known",
    ].filter(Boolean),
    lines: [
      doing && `${doing.name} for ${lasting(doing.end - doing.begin)}`,
      `${model.isLost[number] ? "lost" : status[number]}, verdict ${verdict[number]}`,
      `began ${clock(model.origin + begin[number])}, ${soFar} ${lasting(end[number] - begin[number])}`,
      `engine ${model.heads[model.headOf[number]].name}`,
      connector[number],
    ].filter(Boolean),
  };
}

/** The same in one sentence, for screen readers. */
export function sentence({ title, wrong, lines }) {
  return `${title}: ${[...wrong, ...lines].join("; ")}`;
}
