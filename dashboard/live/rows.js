// Which row a request is drawn in. Requests that do not overlap share a row; an engine has rows of its own.
// A request keeps its row from update to update, so that nothing jumps.

const APART_SHARE = 0.004; // of the range: neighbours in a row must be told apart
export const HEAD = 22; // pixels, as all of these
export const ROW = 26;

export class Rows {
  #known = new Map(); // rows of requests, by engine

  /** Rows for the requests of an answer: `row` of each, `tops` of the rows in pixels, engines with their `heads`. */
  place(requests, width_ms) {
    const apart = width_ms * APART_SHARE;
    const engines = [...new Set(requests.engine)].sort();
    const known = new Map();
    const row = new Int32Array(requests.begin.length);
    const tops = [];
    const heads = [];
    let top = 0;
    for (const engine of engines) {
      const rows = this.#engine(requests, engine, apart);
      known.set(engine, new Map(rows.flatMap((held, n) => held.map((each) => [requests.request[each.number], n]))));
      heads.push({ engine, top, rows: rows.length });
      top += HEAD;
      for (const held of rows) {
        for (const each of held) row[each.number] = tops.length;
        tops.push(top);
        top += ROW;
      }
      top += 6;
    }
    this.#known = known;
    return { row, tops, heads, height: top };
  }

  #engine(requests, engine, apart) {
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
      if (!rows.some((held) => insert(held, each))) rows.push([each]);
    }
    while (rows.length > 1 && rows.at(-1).length === 0) rows.pop();
    return rows;
  }
}

/** Put it into a row that is in order of time; false if it would overlap. */
function insert(held, each) {
  const last = held.at(-1);
  if (last === undefined || last.end <= each.begin) return Boolean(held.push(each)); // most come in order
  let [low, high] = [0, held.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (held[middle].begin <= each.begin) low = middle + 1;
    else high = middle;
  }
  if (low > 0 && held[low - 1].end > each.begin) return false;
  if (low < held.length && held[low].begin < each.end) return false;
  held.splice(low, 0, each);
  return true;
}
