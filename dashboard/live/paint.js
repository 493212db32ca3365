// Draws the lanes: axis, phases, names, findings, missing spans, deaths, and the end of known time.

import { cutId } from "../browser/ids.js";
import { TRANSFERS } from "./model.js";
import { HEAD, ROW } from "./rows.js";
import { hatch, translucent } from "./theme.js";
import { clock, ticks } from "./time.js";

export const RULER = 30; // pixels, as all of these
const BAR_TOP = 13; // within a row: the name is above the bar
const BAR = 10;
const STRIP = 4; // of the bar, for a transfer
const LEAST_NAME = 84; // a shorter part of a name is useless
const MARK = 6; // half a finding's diamond
const COLUMN = 4; // of a folded engine

/** Coordinates on the canvas: pixels from milliseconds after the model's origin, and back. */
export class Place {
  constructor(model, fields) {
    Object.assign(this, { model, ...fields }); // width, height, from, to, now, scroll
  }

  x(at) {
    return ((at - this.from) / (this.to - this.from)) * this.width;
  }

  at(x) {
    return this.from + (x / this.width) * (this.to - this.from);
  }

  y(row) {
    return RULER + this.model.tops[row] - this.scroll;
  }

  /** The middle of a finding; one without a request is on the axis. */
  ofMark(mark) {
    return [this.x(mark.at), mark.lane < 0 ? RULER - 8 : this.y(this.model.row[mark.lane]) + BAR_TOP + BAR / 2];
  }

  markNear(x, y) {
    let [best, least] = [null, 9];
    for (const mark of this.model.marks) {
      const [left, top] = this.ofMark(mark);
      const away = Math.hypot(x - left, y - top);
      if (away < least) [best, least] = [mark, away];
    }
    return best;
  }
}

/** The whole picture. `end` is the end of known time, and its reason: {at, text, isWrong}. */
export function paint(pen, place, theme, { hovered, focused, chosen, end }) {
  const { model } = place;
  const axis = ticks(place.from + model.origin, place.to + model.origin, place.width / 110);
  pen.fillStyle = theme.background;
  pen.fillRect(0, 0, place.width, place.height);
  pen.lineWidth = 1;
  verticals(pen, place, axis, RULER, place.height, theme.faint);
  paintSegments(pen, place, theme);
  paintFolded(pen, place, theme);
  paintUnsure(pen, place, theme);
  paintNames(pen, place, theme);
  paintUnasked(pen, place, theme);
  for (const number of [hovered, chosen]) if (number >= 0) paintFrame(pen, place, theme, number);
  paintMarks(pen, place, theme, focused);
  paintDeaths(pen, place, theme);
  paintEnd(pen, place, theme, end);
  paintRuler(pen, place, theme, axis);
  paintGaps(pen, place, theme);
}

/** A line at each tick of the axis. */
function verticals(pen, place, axis, top, bottom, colour) {
  pen.strokeStyle = colour;
  pen.beginPath();
  for (const tick of axis.at) {
    const x = Math.round(place.x(tick - place.model.origin)) + 0.5;
    pen.moveTo(x, top);
    pen.lineTo(x, bottom);
  }
  pen.stroke();
}

function paintRuler(pen, place, theme, axis) {
  pen.fillStyle = theme.background;
  pen.fillRect(0, 0, place.width, RULER);
  verticals(pen, place, axis, RULER - 7, RULER - 1, theme.border);
  pen.beginPath();
  pen.moveTo(0, RULER - 0.5);
  pen.lineTo(place.width, RULER - 0.5);
  pen.stroke();
  pen.fillStyle = theme.muted;
  pen.font = `12px ${theme.font}`;
  pen.textBaseline = "middle";
  for (const tick of axis.at) {
    const text = clock(tick, axis.step);
    const half = pen.measureText(text).width / 2;
    const x = place.x(tick - place.model.origin);
    // Labels that the edge would cut are left out.
    if (x - half >= 2 && x + half <= place.width - 2) pen.fillText(text, x - half, 13);
  }
}

/** All segments, phase by phase, since changing the colour is expensive. Segments on the same pixel are drawn once. */
function paintSegments(pen, place, theme) {
  const { model } = place;
  const { lane, begin, end, goes_on } = model.segments;
  const isFolded = model.heads.map((head) => head.isFolded);
  const scale = place.width / (place.to - place.from);
  const order = model.phases.map((name, phase) => [name, phase]);
  order.sort((a, b) => TRANSFERS.has(a[0]) - TRANSFERS.has(b[0]));
  for (const [name, phase] of order) {
    const isTransfer = TRANSFERS.has(name);
    pen.fillStyle = theme.phases[name] ?? theme.muted;
    let [lastRow, lastX] = [-1, -1];
    for (const n of model.byPhase[phase]) {
      const until = goes_on[n] ? Math.max(end[n], place.now) : end[n];
      if (until < place.from || begin[n] > place.to || isFolded[model.headOf[lane[n]]]) continue;
      const row = model.row[lane[n]];
      const top = RULER + model.tops[row] - place.scroll + BAR_TOP;
      if (top > place.height || top + BAR < RULER) continue;
      const x = Math.max(-2, (begin[n] - place.from) * scale);
      const right = Math.min(place.width + 2, (until - place.from) * scale);
      if (row === lastRow && right <= lastX) continue;
      const width = Math.max(1, right - x);
      [lastRow, lastX] = [row, x + width];
      if (isTransfer) pen.fillRect(x, top + BAR - STRIP, Math.max(2, width), STRIP + 1);
      else pen.fillRect(x, top, width, BAR);
    }
  }
}

/** A folded engine: its number of concurrent requests. */
function paintFolded(pen, place, theme) {
  const { heads, headOf, requests } = place.model;
  const columns = Math.ceil(place.width / COLUMN);
  const columnOf = (at) => Math.min(columns - 1, Math.max(0, Math.floor(place.x(at) / COLUMN)));
  heads.forEach((head, n) => {
    if (!head.isFolded) return;
    const changes = new Int32Array(columns + 1);
    requests.begin.forEach((begin, number) => {
      const end = requests.is_open[number] ? Math.max(place.now, requests.end[number]) : requests.end[number];
      if (headOf[number] !== n || end < place.from || begin > place.to) return;
      changes[columnOf(begin)]++;
      changes[columnOf(end) + 1]--;
    });
    let running = 0;
    const busy = Array.from(changes.subarray(0, columns), (change) => (running += change));
    const most = Math.max(1, ...busy);
    const bottom = RULER + head.top + HEAD + ROW - place.scroll;
    pen.fillStyle = translucent(theme.phases.running, 0.6);
    busy.forEach((each, column) => {
      const height = (each / most) * (ROW - 4);
      if (each > 0) pen.fillRect(column * COLUMN, bottom - height, COLUMN, height);
    });
  });
}

/** Each request's name above its bar, if it fits; and a bad outcome. */
function paintNames(pen, place, theme) {
  const { heads, headOf, inRow, isLost, requests } = place.model;
  const { begin, end, external, request, status } = requests;
  pen.font = `11px ${theme.font}`;
  pen.textBaseline = "alphabetic";
  for (let row = 0; row < inRow.length; row++) {
    const y = place.y(row);
    if (y > place.height || y + ROW < RULER) continue;
    inRow[row].forEach((number, n) => {
      if (heads[headOf[number]].isFolded) return; // the names would overlap
      if (end[number] < place.from || begin[number] > place.to) return;
      const left = Math.max(0, place.x(begin[number]));
      // A name may extend over free space, up to the next request of the row.
      const next = n + 1 < inRow[row].length ? place.x(begin[inRow[row][n + 1]]) - 6 : place.width;
      const outcome = isLost[number] ? "lost" : status[number];
      const isBad = outcome === "lost" || outcome === "failed" || outcome === "abandoned";
      const room = Math.min(next, place.width) - left - 2;
      const end_ = isBad ? ` · ${outcome}` : "";
      const name = external[number] || request[number];
      if (room < LEAST_NAME && pen.measureText(name + end_).width > room) return;
      pen.fillStyle = isBad ? theme.wrong : theme.muted;
      pen.fillText(fitting(pen, name, room - pen.measureText(end_).width) + end_, left + 1, y + BAR_TOP - 3);
    });
  }
}

/** An id, shortened if it does not fit. */
function fitting(pen, id, room) {
  let most = id.length;
  while (most > 1 && pen.measureText(cutId(id, most)).width > room) most = Math.min(most - 1, Math.floor((most * room) / pen.measureText(cutId(id, most)).width));
  return most > 1 ? cutId(id, most) : "";
}

/** A dashed line where a request may have continued or ended: the span that would show it is missing. */
function paintUnsure(pen, place, theme) {
  const { row, requests } = place.model;
  pen.strokeStyle = theme.muted;
  pen.lineWidth = 1.5;
  pen.setLineDash([3, 5]);
  pen.beginPath();
  requests.is_unsure.forEach((isUnsure, number) => {
    const y = place.y(row[number]) + BAR_TOP + BAR / 2;
    if (!isUnsure || y < RULER || y > place.height) return;
    pen.moveTo(Math.max(-8, place.x(requests.end[number])), y);
    pen.lineTo(Math.min(place.width + 8, place.x(place.now)), y);
  });
  pen.stroke();
  pen.setLineDash([]);
}

/** A frame around the request under the pointer, or the request selected by keyboard. */
function paintFrame(pen, place, theme, number) {
  const { row, requests } = place.model;
  const y = place.y(row[number]) + BAR_TOP - 1.5;
  const left = Math.max(-4, place.x(requests.begin[number]));
  const right = Math.min(place.width + 4, place.x(requests.end[number]));
  pen.strokeStyle = theme.text;
  pen.lineWidth = 1.5;
  pen.strokeRect(left - 1, y, Math.max(3, right - left + 2), BAR + 3);
}

/** The time range without an answer yet. */
function paintUnasked(pen, place, theme) {
  const { origin, until, now } = place.model;
  for (const [from, to] of [[place.from, 0], [until - origin, place.to]]) {
    const left = Math.max(0, place.x(from));
    const right = Math.min(place.width, place.x(to));
    if (right - left < 1) continue;
    pen.fillStyle = hatch(pen, theme.faint);
    pen.fillRect(left, RULER, right - left, place.height - RULER);
    if (right - left < 80 || to > now - origin) continue;
    pen.fillStyle = theme.muted;
    pen.font = `12px ${theme.font}`;
    pen.fillText("Loading …", left + (right - left) / 2 - 26, RULER + 24);
  }
}

/** Missing spans: over the rows of the engine that lost them, and always on the axis. */
function paintGaps(pen, place, theme) {
  for (const gap of place.model.gaps) {
    const left = place.x(gap.from);
    const right = Math.max(left + 3, place.x(gap.to));
    if (right < 0 || left > place.width) continue;
    const head = place.model.heads.find((each) => each.engine === gap.engine);
    if (head) {
      const top = Math.max(RULER, RULER + head.top - place.scroll);
      const bottom = RULER + head.bottom - place.scroll;
      pen.fillStyle = hatch(pen, theme.gap);
      pen.fillRect(left, top, right - left, Math.max(0, bottom - top));
    }
    pen.fillStyle = theme.wrong;
    pen.fillRect(left, RULER - 3, right - left, 3);
  }
}

/** A death: a red line through the engine's rows with its time, and a mark on the axis. */
function paintDeaths(pen, place, theme) {
  for (const death of place.model.deaths) {
    const x = place.x(death.at);
    if (x < -1 || x > place.width + 1) continue;
    pen.fillStyle = theme.wrong;
    pen.fillRect(x - 1, RULER - 7, 2, 7);
    const head = place.model.heads.find((each) => each.engine === death.engine);
    if (!head) continue;
    const top = Math.max(RULER, RULER + head.top - place.scroll);
    const bottom = RULER + head.bottom - place.scroll;
    if (bottom <= top || top > place.height - HEAD) continue;
    pen.fillRect(x - 1, top, 2, bottom - top);
    label(pen, place, theme, `died ${clock(place.model.origin + death.at, 1000)}`, x, Math.min(bottom, place.height) - 10);
  }
}

/** Text on the background beside a line: to its right, or to its left if it does not fit. */
function label(pen, place, theme, text, x, y) {
  pen.font = `600 12px ${theme.font}`;
  pen.textBaseline = "middle";
  const { width } = pen.measureText(text);
  const left = x + width + 12 <= place.width ? x + 6 : x - width - 6;
  pen.globalAlpha = 0.85;
  pen.fillStyle = theme.background;
  pen.fillRect(left - 2, y - 8, width + 4, 16);
  pen.globalAlpha = 1;
  pen.fillStyle = theme.wrong;
  pen.fillText(text, left, y);
}

/** Findings are red diamonds, and hollow if they are known. */
function paintMarks(pen, place, theme, focused) {
  pen.lineWidth = 1.5;
  for (const mark of place.model.marks) {
    const [x, y] = place.ofMark(mark);
    if (x < -MARK || x > place.width + MARK || y > place.height + MARK || (mark.lane >= 0 && y < RULER)) continue;
    const half = mark === focused ? MARK + 2 : MARK;
    pen.beginPath();
    pen.moveTo(x, y - half);
    pen.lineTo(x + half, y);
    pen.lineTo(x, y + half);
    pen.lineTo(x - half, y);
    pen.closePath();
    pen.fillStyle = mark.known ? theme.background : theme.wrong;
    pen.fill();
    pen.strokeStyle = mark === focused ? theme.text : mark.known ? theme.wrong : theme.background;
    pen.stroke();
  }
}

/** The end of known time; it covers everything drawn beyond. */
function paintEnd(pen, place, theme, { at, text, isWrong }) {
  const x = place.x(at - place.model.origin);
  if (x > place.width - 1) return;
  const left = Math.max(0, x);
  for (const fill of [theme.background, hatch(pen, theme.faint)]) {
    pen.fillStyle = fill;
    pen.fillRect(left, RULER, place.width - left, place.height - RULER);
  }
  pen.fillStyle = isWrong ? theme.wrong : theme.primary;
  if (x >= 0) pen.fillRect(x, RULER, 1.5, place.height - RULER);
  if (!text) return;
  pen.font = `12px ${theme.font}`;
  const label = `${text} ${clock(at, 1000)}`;
  pen.fillStyle = isWrong ? theme.wrong : theme.muted;
  if (place.width - left > pen.measureText(label).width + 14) pen.fillText(label, left + 8, RULER + 18);
}
