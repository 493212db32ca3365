// The sentences around the lanes: whether they are live, the contents of the range, and the text in place of lanes if there
// are none.

import { howItEnded } from "./heads.js";
import { between, clock, count, lasting } from "./time.js";

const SILENT_MS = 30_000;
export const HUNG_MS = 8000; // without an update
const RECENT_MS = 900_000; // how long a death counts as recent

/** Show the sentences. `known` has the answer and the model, `inside` the counts in the range; `change` is called with the
 *  changes of the view that a button offers. */
export function showSentences(find, view, known, inside, change) {
  const { answer, model, from, to } = known;
  const [is, text] = stateOf(view, known);
  const state = find(".state");
  if (state.textContent !== text) state.textContent = text; // a screen reader announces each change
  state.dataset.is = is;
  const facts = model ? factsOf(model, answer, from, to, inside) : "";
  const wrong = model ? wrongOf(view, model, from - model.origin, to - model.origin) : "";
  const bold = Object.assign(document.createElement("b"), { textContent: wrong });
  find(".facts").replaceChildren(facts, wrong ? " · " : "", bold);
  showEmpty(find(".empty"), emptyText(view, known, inside), change);
}

/** Whether the lanes are live, still or without an answer, or an engine died: a class and a sentence. */
function stateOf(view, { answer, deaths, isAway, came_ms }) {
  const asked_ms = answer?.now_ms ?? Date.now();
  const received_ms = answer?.heard_ns ? answer.heard_ns / 1e6 : null;
  const silent_ms = Date.now() - came_ms;
  if (isAway) return ["wrong", `The tracer does not answer, since ${clock(asked_ms, 1000)} UTC. Trying again.`];
  if (silent_ms > HUNG_MS) return ["wrong", `No update for ${lasting(silent_ms - (silent_ms % 1000))}: is the dashboard still running?`];
  const recent = view.fit ? deaths : deaths.filter(({ at_ms }) => asked_ms - at_ms < Math.max(RECENT_MS, view.span_ms));
  if ((view.fit || view.to_ms === null) && recent.length > 0) return ["wrong", deathsText(recent, answer.engine_names)];
  if (view.to_ms !== null && !view.fit) return ["still", "The range is fixed; requests in it still update"];
  if (received_ms && asked_ms - received_ms > SILENT_MS) return ["quiet", `No spans since ${clock(received_ms, 1000)} UTC`];
  if (view.to_ms !== null) return ["still", "The latest there is"];
  return ["live", "Live"];
}

/** The engine that died, when, its cause, and the requests lost. */
export function deathsText(deaths, names) {
  const [last, ...others] = [...deaths].sort((a, b) => b.at_ms - a.at_ms);
  const lost = last.lost ? ` with ${count(last.lost, "open request")}` : "";
  const also = others.length > 0 ? `; ${count(others.length, "other engine")} died before` : "";
  return `Engine ${names?.[last.engine] ?? last.engine} ${howItEnded(clock(last.at_ms, 1000), last.ended_by?.split(":")[0])}${lost}${also}`;
}

/** The contents of the range, in a line. */
function factsOf(model, answer, from, to, inside) {
  const requests = count(inside.requests, "request");
  const sample = answer.has_all_findings ? "a sample with every finding" : "a sample of the findings too";
  const parts = [`${between(from, to)} UTC`];
  parts.push(answer.is_sample ? `${requests}, ${sample}` : requests, count(inside.findings, "finding"));
  if (answer.is_sample) parts.push(`about ${count(Number(answer.known.toPrecision(2)))} requests were near this time`);
  if (!answer.is_whole) parts.push("the search took too long and was stopped: narrow the range");
  return parts.join(" · ");
}

/** Problems in the range besides findings: missing spans, and deaths that the state does not mention. */
function wrongOf(view, model, from, to) {
  const dead = view.to_ms === null || view.fit ? [] : model.deaths.filter(({ at }) => at >= from && at <= to);
  const names = Object.fromEntries(model.heads.map(({ engine, name }) => [engine, name]));
  return [dead.length > 0 && deathsText(dead, names), gapsOf(model, from, to)].filter(Boolean).join(" · ");
}

function gapsOf(model, from, to) {
  const gaps = model.gaps.filter((gap) => gap.to >= from && gap.from <= to);
  if (gaps.length === 0) return "";
  const first = Math.min(...gaps.map((gap) => gap.from));
  const last = Math.max(...gaps.map((gap) => gap.to));
  const missing = gaps.reduce((sum, gap) => sum + gap.missing, 0);
  const step = last - first < 10_000 ? 1 : 1000;
  const ends = `${clock(model.origin + first, step)} and ${clock(model.origin + last, step)}`;
  return `${count(missing, "span")} missing between ${ends}`;
}

/** The text in place of lanes: a title, a sentence, and offers (a label and a change of the view each); null if there are
 *  lanes, or the answer has not arrived. */
function emptyText(view, { answer, model, isFiltered, isAway, from, to }, inside) {
  if (answer === null) {
    return isAway
      ? ["The tracer does not answer", "Start it with kvtrail serve. This page looks again every 2 seconds.", []]
      : ["Asking the tracer …", "The first lanes show in a moment.", []];
  }
  if (inside.requests > 0) return null;
  if (from < model.origin || Math.min(to, model.now) > model.until) return null;
  if (isFiltered) return ["No request matches", "Nothing in this time matches the filters above. The table searches ids at any time.", []];
  if (view.fit) {
    return ["No requests yet", "The tracer listens. The overview says where to send spans. Lanes appear here as soon as they arrive.", []];
  }
  const last = answer.heard_ns === null ? "" : ` The last spans came at ${clock(answer.heard_ns / 1e6, 1000)} UTC.`;
  return ["Nothing ran in this time", `No request overlaps it.${last}`, [["Show the latest there is", { fit: true }]]];
}

/** Show this text, or hide the box; `change` is called with a button's change of the view. */
function showEmpty(box, empty, change) {
  box.hidden = empty === null;
  if (empty === null) return;
  const [title, text, offers] = empty;
  const content = JSON.stringify(empty);
  if (box.dataset.content === content) return; // a button that is replaced while pressed gets no click
  box.dataset.content = content;
  box.querySelector("strong").textContent = title;
  box.querySelector("p").textContent = text;
  const buttons = offers.map(([label, changes]) =>
    Object.assign(document.createElement("button"), { type: "button", textContent: label, onclick: () => change(changes) }));
  box.querySelector(".offers").replaceChildren(...buttons);
}
