// The assignment of requests to rows, which is remembered.

export const HEAD = 26; // pixels: an engine's head
export const ROW = 26;
const BELOW = 6; // pixels after an engine's last row
const APART_SHARE = 0.004; // of the range: the minimum space between adjacent requests in a row
const REMEMBERED = "kvtrail.rows";
const MAX_REMEMBERED = 3000; // requests

/** Requests that do not overlap share a row; each engine has its own rows. A request keeps its row across updates and reloads,
 *  so that nothing jumps. */
export class Rows {
  #known; // by engine: the rows of its requests

  constructor(remembered = []) {
    this.#known = new Map(remembered.map(([engine, rows]) => [engine, new Map(rows)]));
  }

  /** The `row` of each request, the `tops` of the rows in pixels, the engines' `heads`, and the `height` of all.
   *  The rows of a folded engine overlap. */
  place(requests, width_ms, { folded = [], names = {} } = {}) {
    const apart = width_ms * APART_SHARE;
    const known = new Map();
    const row = new Int32Array(requests.begin.length);
    const tops = [];
    const heads = [];
    let top = 0;
    for (const engine of inOrder(requests.engine, names)) {
      const rows = this.#ofEngine(requests, engine, apart);
      known.set(engine, new Map(rows.flatMap((members, n) => members.map((each) => [requests.request[each.number], n]))));
      const isFolded = folded.includes(engine);
      const first = tops.length;
      const begins = top;
      top += HEAD;
      for (const members of rows) {
        for (const each of members) row[each.number] = tops.length;
        tops.push(top);
        if (!isFolded) top += ROW;
      }
      top += isFolded ? ROW + BELOW : BELOW;
      heads.push({ engine, name: names[engine] ?? engine, top: begins, bottom: top, first, rows: rows.length, isFolded });
    }
    this.#known = known;
    return { row, tops, heads, height: top };
  }

  /** The data that survives a reload. */
  remembered() {
    let room = MAX_REMEMBERED;
    return [...this.#known].map(([engine, rows]) => {
      const kept = [...rows].slice(0, room);
      room -= kept.length;
      return [engine, kept];
    });
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

/** The engines, sorted by their names. */
function inOrder(engines, names) {
  const key = (engine) => [names[engine] ?? engine, engine].join("\n");
  return [...new Set(engines)].sort((a, b) => (key(a) < key(b) ? -1 : 1));
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

/** The rows that this browser remembers. The page also works without storage. */
export function rememberedRows() {
  try {
    return new Rows(JSON.parse(localStorage.getItem(REMEMBERED) ?? "[]"));
  } catch {
    return new Rows();
  }
}

export function rememberRows(rows) {
  try {
    localStorage.setItem(REMEMBERED, JSON.stringify(rows.remembered()));
  } catch {
    // Storage may be forbidden or full.
  }
}
