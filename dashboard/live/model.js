// An answer of the tracer, made ready to be drawn: times in milliseconds after `origin`, segments by phase, marks by time.

import { Rows } from "./rows.js";

export const TRANSFERS = new Set(["load", "store"]); // drawn below the phase, as they run beside it

export function modelOf(answer, rows) {
  const origin = answer.from_ms;
  const requests = { ...answer.requests, begin: toMs(answer.requests.begin_us), end: toMs(answer.requests.end_us) };
  const placed = rows.place(requests, answer.to_ms - answer.from_ms);
  const segments = {
    lane: answer.segments.lane,
    phase: answer.segments.phase,
    begin: toMs(answer.segments.begin_us),
    end: toMs(answer.segments.end_us),
  };
  // What is going on goes on while the next answer is awaited.
  segments.goes_on = new Uint8Array(segments.lane.length);
  const byPhase = answer.phases.map(() => []);
  const first = new Int32Array(requests.begin.length + 1).fill(-1);
  for (let n = 0; n < segments.lane.length; n++) {
    byPhase[segments.phase[n]].push(n);
    const lane = segments.lane[n];
    if (first[lane] < 0) first[lane] = n;
    if (requests.is_open[lane] && !requests.is_unsure[lane] && segments.end[n] >= requests.end[lane]) segments.goes_on[n] = 1;
  }
  return {
    origin,
    until: answer.to_ms,
    now: answer.now_ms,
    phases: answer.phases,
    requests,
    ...placed,
    held: heldBy(placed, requests),
    segments,
    byPhase,
    first,
    marks: marksOf(answer.marks),
    gaps: toGaps(answer.gaps),
  };
}

/** A loop, and not `Float64Array.from`, which takes ten times as long: this is most of what an update costs. */
function toMs(micros) {
  const ms = new Float64Array(micros.length);
  for (let n = 0; n < ms.length; n++) ms[n] = micros[n] / 1000;
  return ms;
}

/** The requests of each row, in order of time. */
function heldBy(placed, requests) {
  const held = placed.tops.map(() => []);
  placed.row.forEach((row, number) => held[row].push(number));
  for (const numbers of held) numbers.sort((a, b) => requests.begin[a] - requests.begin[b]);
  return held;
}

function marksOf(columns) {
  const marks = columns.lane.map((lane, n) => ({
    lane,
    at: columns.at_us[n] / 1000,
    rule: columns.rule[n],
    title: columns.title[n],
    severity: columns.severity[n],
    healed: columns.healed[n] > 0,
  }));
  return marks.sort((a, b) => a.at - b.at || a.lane - b.lane);
}

function toGaps(columns) {
  return columns.engine.map((engine, n) => ({
    engine,
    from: columns.begin_us[n] / 1000,
    to: columns.end_us[n] / 1000,
    missing: columns.missing[n],
  }));
}

/** The request at a place: its row, and milliseconds after the origin; -1 if there is none within `near_ms`. */
export function requestAt(model, row, at, near_ms) {
  const numbers = model.held[row] ?? [];
  let best = -1;
  let least = near_ms;
  for (const number of numbers) {
    const { begin, end } = model.requests;
    const away = at < begin[number] ? begin[number] - at : at > end[number] ? at - end[number] : 0;
    if (away <= least) [best, least] = [number, away];
  }
  return best;
}

/** What the request does at that moment: its segment, or null. A phase counts before a transfer beside it. */
export function segmentAt(model, number, at) {
  const { lane, begin, end, phase } = model.segments;
  let found = null;
  for (let n = model.first[number]; n >= 0 && lane[n] === number; n++) {
    if (begin[n] <= at && at <= end[n]) {
      const name = model.phases[phase[n]];
      if (found === null || !TRANSFERS.has(name)) found = { name, begin: begin[n], end: end[n] };
      if (!TRANSFERS.has(name)) return found;
    }
  }
  return found;
}

/** How many requests overlap a stretch of time, and how many findings lie in it. */
export function counts(model, from, to) {
  const { begin, end } = model.requests;
  let requests = 0;
  for (let n = 0; n < begin.length; n++) requests += begin[n] <= to && end[n] >= from;
  return { requests, findings: model.marks.filter((mark) => mark.at >= from && mark.at <= to).length };
}

/** How long requests were in which phase within a stretch of time, as pairs, the longest first. */
export function spent(model, from, to) {
  const sums = new Map();
  const { segments } = model;
  for (let n = 0; n < segments.lane.length; n++) {
    const length = Math.min(segments.end[n], to) - Math.max(segments.begin[n], from);
    const name = model.phases[segments.phase[n]];
    if (length > 0) sums.set(name, (sums.get(name) ?? 0) + length);
  }
  return [...sums].sort((a, b) => b[1] - a[1]);
}
