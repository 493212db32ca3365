// Time: the range on the screen and how pan and zoom change it, the axis's ticks, moments and durations in words.
// Moments are Unix milliseconds. A view follows the present while its `to_ms` is null: its right edge is then `now`.

export const CLICK = 4; // pixels that the pointer may move during a click
export const SHORTEST_MS = 1;
export const LONGEST_MS = 7 * 86_400_000;

const FIT_STEPS_S = [10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 300, 420, 600, 900];
const FIT_MOST_MS = FIT_STEPS_S.at(-1) * 1000;
const LEAST_SILENCE_MS = 60_000;
const AFTER_SHARE = 0.04; // of a fitted range in the past: the margin after its end

/** The range that fits an extent, or no extent. It follows the present, unless that would leave more than half of it
 *  empty. */
export function fitted(extent, now_ms) {
  if (extent === null) return { span_ms: 300_000, to_ms: null };
  const length = Math.min(FIT_MOST_MS, extent.to - extent.from);
  const follows = now_ms - extent.to < Math.max(LEAST_SILENCE_MS, length);
  const least = follows ? now_ms - extent.from : length * (1 + 2 * AFTER_SHARE);
  const span_ms = 1000 * (FIT_STEPS_S.find((step) => step * 1000 >= least) ?? FIT_STEPS_S.at(-1));
  return { span_ms, to_ms: follows ? null : extent.to + span_ms * AFTER_SHARE };
}

export function rangeOf(view, now_ms) {
  const to = view.to_ms ?? now_ms;
  return { from: to - view.span_ms, to };
}

/** The view zoomed by `factor` (below 1: closer) around the moment `at_ms`; one that follows the present still does. */
export function zoomed(view, factor, at_ms, now_ms) {
  const span = Math.min(LONGEST_MS, Math.max(SHORTEST_MS, view.span_ms * factor));
  if (view.to_ms === null) return { ...view, span_ms: span };
  return { ...view, span_ms: span, to_ms: at_ms + span * ((view.to_ms - at_ms) / view.span_ms) };
}

/** The view moved by `by_ms`; if it reaches the present, it follows it again. */
export function panned(view, by_ms, now_ms) {
  const to = rangeOf(view, now_ms).to + by_ms;
  return { ...view, to_ms: to >= now_ms ? null : Math.min(to, now_ms + view.span_ms / 2) };
}

const STILL_SHARE = 0.03; // of the width: two fingers are never perfectly still

/** The view after a pinch: zoomed by `factor`, with the point at `from_share` of the width moved to `to_share`. */
export function pinched(view, factor, from_share, to_share, now_ms) {
  const at = rangeOf(view, now_ms).from + view.span_ms * from_share;
  const next = zoomed(view, factor, at, now_ms);
  if (next.to_ms === null && Math.abs(to_share - from_share) < STILL_SHARE) return next;
  return panned(next, at + next.span_ms * (1 - to_share) - rangeOf(next, now_ms).to, now_ms);
}

export function showing(view, from_ms, to_ms) {
  return { ...view, span_ms: Math.max(SHORTEST_MS, to_ms - from_ms), to_ms };
}

/** The view centred on a moment, unless that is visible already. */
export function centred(view, at_ms, now_ms) {
  const { from, to } = rangeOf(view, now_ms);
  const margin = (to - from) * 0.05;
  return at_ms >= from + margin && at_ms <= to - margin ? view : { ...view, to_ms: at_ms + view.span_ms / 2 };
}

const STEPS_MS = [
  0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 10e3, 15e3, 30e3,
  60e3, 120e3, 300e3, 600e3, 900e3, 1800e3, 3600e3, 7200e3, 10_800e3, 21_600e3, 43_200e3, 86_400e3,
];

export function ticks(from_ms, to_ms, most) {
  const step = STEPS_MS.find((each) => (to_ms - from_ms) / each <= most) ?? STEPS_MS.at(-1);
  const at = [];
  for (let n = Math.ceil(from_ms / step); n * step <= to_ms; n++) at.push(n * step);
  return { step, at };
}

/** A moment in UTC, in the precision of `step_ms`: 12:00, 12:00:01, 12:00:01.250. */
export function clock(at_ms, step_ms = 1) {
  const text = new Date(at_ms).toISOString();
  if (step_ms >= 86_400e3) return text.slice(5, 10);
  if (step_ms >= 60e3) return text.slice(11, 16);
  if (step_ms >= 1e3) return text.slice(11, 19);
  if (step_ms >= 1) return text.slice(11, 23);
  return text.slice(11, 23) + String(Math.floor((at_ms % 1) * 1000)).padStart(3, "0");
}

export function day(at_ms) {
  return new Date(at_ms).toISOString().slice(0, 10);
}

/** Two moments with their dates; the second date only if it differs. */
export function between(from_ms, to_ms) {
  const step = to_ms - from_ms < 10_000 ? 1 : 1000;
  const until = day(from_ms) === day(to_ms) ? "" : `${day(to_ms)} `;
  return `${day(from_ms)} ${clock(from_ms, step)} to ${until}${clock(to_ms, step)}`;
}

/** A duration with its unit: 9 µs, 2.31 ms, 1.24 s, 2 min 03 s. */
export function lasting(ms) {
  if (ms < 1) return `${Math.round(ms * 1000)} µs`;
  if (ms < 1000) return `${Number(ms.toPrecision(3))} ms`;
  if (ms < 60_000) return `${Number((ms / 1000).toPrecision(3))} s`;
  const seconds = Math.round(ms / 1000);
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  if (hours) return `${hours} h ${String(minutes).padStart(2, "0")} min`;
  return seconds % 60 ? `${minutes} min ${String(seconds % 60).padStart(2, "0")} s` : `${minutes} min`;
}

export function count(number, what = "") {
  const text = number.toLocaleString("en-US");
  return what ? `${text} ${what}${number === 1 ? "" : "s"}` : text;
}
