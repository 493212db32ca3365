// The tracer's answer, prepared for drawing: times in milliseconds after `origin`, requests in rows, segments by phase.

export const TRANSFERS = new Set(["load", "store"]); // drawn below the phases that they overlap

/** The model of an answer; `rows` remembers the last rows, and folded engines have one row. */
export function modelOf(answer, rows, folded = []) {
  const { begin_us: begins, end_us: ends, is_open, is_unsure } = answer.requests;
  const requests = { ...answer.requests, begin: toMs(begins), end: toMs(ends), is_open: [...is_open], is_unsure: [...is_unsure] };
  const deaths = (answer.deaths ?? []).map((death) => ({ ...death, at: death.at_ms - answer.from_ms }));
  const isLost = lostIn(requests, deaths);
  const placed = rows.place(requests, answer.to_ms - answer.from_ms, { folded, names: answer.engine_names });
  const { lane, phase, begin_us, end_us } = answer.segments;
  // Running segments continue until the next answer.
  const segments = { lane, phase, begin: toMs(begin_us), end: toMs(end_us), goes_on: new Uint8Array(lane.length) };
  const byPhase = answer.phases.map(() => []);
  const first = new Int32Array(requests.begin.length + 1).fill(-1); // segment of each request
  for (let n = 0; n < lane.length; n++) {
    byPhase[phase[n]].push(n);
    const number = lane[n];
    if (first[number] < 0) first[number] = n;
    if (isLost[number]) segments.end[n] = Math.min(segments.end[n], requests.end[number]);
    else if (requests.is_open[number] && !requests.is_unsure[number] && segments.end[n] >= requests.end[number]) segments.goes_on[n] = 1;
  }
  const inRow = placed.tops.map(() => []); // requests by time
  placed.row.forEach((row, number) => inRow[row].push(number));
  for (const numbers of inRow) numbers.sort((a, b) => requests.begin[a] - requests.begin[b]);
  const marks = records(answer.marks).map(({ at_us, ...mark }) => ({ ...mark, at: at_us / 1000 }));
  return {
    origin: answer.from_ms,
    until: answer.to_ms,
    now: answer.now_ms,
    phases: answer.phases,
    requests,
    isLost,
    deaths,
    ...placed,
    headOf: headsOf(placed),
    inRow,
    segments,
    byPhase,
    first,
    marks: marks.sort((a, b) => a.at - b.at || a.lane - b.lane),
    gaps: records(answer.gaps).map((gap) => ({ ...gap, from: gap.begin_us / 1000, to: gap.end_us / 1000 })),
  };
}

const OVER = new Set(["finished", "failed"]);

/** The requests that were open when their engine died; they end there. */
function lostIn(requests, deaths) {
  const isLost = new Uint8Array(requests.begin.length);
  const died = new Map(deaths.map((death) => [death.engine, death.at]));
  if (died.size === 0) return isLost;
  requests.engine.forEach((engine, number) => {
    const at = died.get(engine);
    if (at === undefined || OVER.has(requests.status[number])) return;
    isLost[number] = 1;
    requests.end[number] = Math.min(requests.end[number], at);
    requests.is_open[number] = requests.is_unsure[number] = false;
  });
  return isLost;
}

/** The number of each request's head. */
function headsOf({ heads, row }) {
  const ofRow = heads.flatMap((head, number) => Array(head.rows).fill(number));
  return row.map((each) => ofRow[each]);
}

/** A loop, since `Float64Array.from` takes ten times as long: this is most of an update's cost. */
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

/** The extent of the contents; null if there are none. */
export function extentOf(model) {
  const { begin, end, is_open } = model.requests;
  let [from, to] = [Infinity, -Infinity];
  for (let n = 0; n < begin.length; n++) {
    from = Math.min(from, begin[n]);
    to = Math.max(to, is_open[n] ? model.now - model.origin : end[n]);
  }
  for (const { at } of model.marks) [from, to] = [Math.min(from, at), Math.max(to, at)];
  for (const { at } of model.deaths) to = Math.max(to, at);
  return from > to ? null : { from: from + model.origin, to: to + model.origin };
}

/** The request in these rows at `at` milliseconds after the origin, or the nearest within `near_ms`; -1 if there is none. */
export function requestAt(model, rows, at, near_ms) {
  const { begin, end } = model.requests;
  let [best, least] = [-1, near_ms];
  for (const row of rows) {
    for (const number of model.inRow[row]) {
      const away = Math.max(begin[number] - at, at - end[number], 0);
      if (away <= least) [best, least] = [number, away];
    }
  }
  return best;
}

/** The request's segment at a moment, or null. A phase takes precedence over a concurrent transfer. */
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

/** The number of requests and findings in a stretch of time, in total and for each of `heads`. */
export function counts(model, from, to) {
  const { begin, end } = model.requests;
  const heads = model.heads.map(() => ({ requests: 0, findings: 0 }));
  let requests = 0;
  for (let n = 0; n < begin.length; n++) {
    if (begin[n] > to || end[n] < from) continue;
    requests++;
    heads[model.headOf[n]].requests++;
  }
  const marks = model.marks.filter((mark) => mark.at >= from && mark.at <= to);
  for (const { lane } of marks) if (lane >= 0) heads[model.headOf[lane]].findings++;
  return { requests, findings: marks.length, heads };
}
