// The tracer's answer, made ready to be drawn: times in milliseconds after `origin`, requests in rows, segments by phase.

export const TRANSFERS = new Set(["load", "store"]); // drawn below the phase, as they run beside it
export const HEAD = 22; // pixels: an engine's head
export const ROW = 26;
const APART_SHARE = 0.004; // of the range: the least space between neighbours in a row

/** The model of an answer; `rows` remembers the rows of the last one. */
export function modelOf(answer, rows) {
  const requests = { ...answer.requests, begin: toMs(answer.requests.begin_us), end: toMs(answer.requests.end_us) };
  const placed = rows.place(requests, answer.to_ms - answer.from_ms);
  const { lane, phase, begin_us, end_us } = answer.segments;
  // What is still running goes on until the next answer.
  const segments = { lane, phase, begin: toMs(begin_us), end: toMs(end_us), goes_on: new Uint8Array(lane.length) };
  const byPhase = answer.phases.map(() => []);
  const first = new Int32Array(requests.begin.length + 1).fill(-1); // segment of each request
  for (let n = 0; n < lane.length; n++) {
    byPhase[phase[n]].push(n);
    const number = lane[n];
    if (first[number] < 0) first[number] = n;
    if (requests.is_open[number] && !requests.is_unsure[number] && segments.end[n] >= requests.end[number]) segments.goes_on[n] = 1;
  }
  const inRow = placed.tops.map(() => []); // requests by time
  placed.row.forEach((row, number) => inRow[row].push(number));
  for (const numbers of inRow) numbers.sort((a, b) => requests.begin[a] - requests.begin[b]);
  const marks = records(answer.marks).map(({ at_us, healed, ...mark }) => ({ ...mark, at: at_us / 1000, healed: healed > 0 }));
  return {
    origin: answer.from_ms,
    until: answer.to_ms,
    now: answer.now_ms,
    phases: answer.phases,
    requests,
    ...placed,
    heads: placed.heads.map((head) => ({ ...head, name: answer.engine_names[head.engine] ?? head.engine })),
    inRow,
    segments,
    byPhase,
    first,
    marks: marks.sort((a, b) => a.at - b.at || a.lane - b.lane),
    gaps: records(answer.gaps).map((gap) => ({ ...gap, from: gap.begin_us / 1000, to: gap.end_us / 1000 })),
  };
}

/** A loop, not `Float64Array.from`, which takes ten times as long: this is most of what an update costs. */
function toMs(micros) {
  const ms = new Float64Array(micros.length);
  for (let n = 0; n < ms.length; n++) ms[n] = micros[n] / 1000;
  return ms;
}

/** Columns as a list of objects. */
function records(columns) {
  const names = Object.keys(columns);
  return columns[names[0]].map((_, n) => Object.fromEntries(names.map((name) => [name, columns[name][n]])));
}

/** Which row a request is drawn in. Requests that do not overlap share a row; each engine has its own rows.
 *  A request keeps its row from update to update, so that nothing jumps. */
export class Rows {
  #known = new Map(); // by engine: the rows of its requests

  /** The `row` of each request, the `tops` of the rows in pixels, the engines' `heads`, and the `height` of all. */
  place(requests, width_ms) {
    const apart = width_ms * APART_SHARE;
    const known = new Map();
    const row = new Int32Array(requests.begin.length);
    const tops = [];
    const heads = [];
    let top = 0;
    for (const engine of [...new Set(requests.engine)].sort()) {
      const rows = this.#ofEngine(requests, engine, apart);
      known.set(engine, new Map(rows.flatMap((members, n) => members.map((each) => [requests.request[each.number], n]))));
      heads.push({ engine, top, rows: rows.length });
      top += HEAD;
      for (const members of rows) {
        for (const each of members) row[each.number] = tops.length;
        tops.push(top);
        top += ROW;
      }
      top += 6;
    }
    this.#known = known;
    return { row, tops, heads, height: top };
  }

  #ofEngine(requests, engine, apart) {
    const before = this.#known.get(engine) ?? new Map();
    const rows = [];
    const fresh = [];
    for (let number = 0; number < requests.begin.length; number++) {
      if (requests.engine[number] !== engine) continue;
      const end = requests.is_open[number] ? Infinity : requests.end[number];
      const each = { number, begin: requests.begin[number], end: end + apart };
      const row = before.get(requests.request[number]);
      if (row === undefined || !insert((rows[row] ??= []), each)) fresh.push(each);
    }
    for (let n = 0; n < rows.length; n++) rows[n] ??= [];
    for (const each of fresh) {
      if (!rows.some((members) => insert(members, each))) rows.push([each]);
    }
    while (rows.length > 1 && rows.at(-1).length === 0) rows.pop();
    return rows;
  }
}

/** Put a request into a row, which is ordered by time; false if it would overlap. */
function insert(members, each) {
  const last = members.at(-1);
  if (last === undefined || last.end <= each.begin) return Boolean(members.push(each)); // most come in order
  let [low, high] = [0, members.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (members[middle].begin <= each.begin) low = middle + 1;
    else high = middle;
  }
  if (low > 0 && members[low - 1].end > each.begin) return false;
  if (low < members.length && members[low].begin < each.end) return false;
  members.splice(low, 0, each);
  return true;
}

/** The request in a row at `at` milliseconds after the origin, or the nearest within `near_ms`; -1 if there is none. */
export function requestAt(model, row, at, near_ms) {
  const { begin, end } = model.requests;
  let [best, least] = [-1, near_ms];
  for (const number of model.inRow[row] ?? []) {
    const away = Math.max(begin[number] - at, at - end[number], 0);
    if (away <= least) [best, least] = [number, away];
  }
  return best;
}

/** The request's segment at that moment, or null. A phase counts before a transfer beside it. */
export function segmentAt(model, number, at) {
  const { lane, begin, end, phase } = model.segments;
  let segment = null;
  for (let n = model.first[number]; n >= 0 && lane[n] === number; n++) {
    if (at < begin[n] || at > end[n]) continue;
    const name = model.phases[phase[n]];
    if (segment === null || !TRANSFERS.has(name)) segment = { name, begin: begin[n], end: end[n] };
    if (!TRANSFERS.has(name)) break;
  }
  return segment;
}

/** How many requests overlap a stretch of time, and how many findings are in it. */
export function counts(model, from, to) {
  const { begin, end } = model.requests;
  let requests = 0;
  for (let n = 0; n < begin.length; n++) requests += begin[n] <= to && end[n] >= from;
  return { requests, findings: model.marks.filter((mark) => mark.at >= from && mark.at <= to).length };
}

/** How long requests were in which phase within a stretch of time: pairs, the longest first. */
export function spent(model, from, to) {
  const sums = new Map();
  const { lane, begin, end, phase } = model.segments;
  for (let n = 0; n < lane.length; n++) {
    const length = Math.min(end[n], to) - Math.max(begin[n], from);
    const name = model.phases[phase[n]];
    if (length > 0) sums.set(name, (sums.get(name) ?? 0) + length);
  }
  return [...sums].sort((a, b) => b[1] - a[1]);
}
