// The range of time that is on the screen, and what pan and zoom make of it. Milliseconds since 1970.
// A view follows the present while its `to_ms` is null; its right edge is then `now`, whatever that is.

export const SHORTEST_MS = 1;
export const LONGEST_MS = 7 * 86_400_000;

export function rangeOf(view, now_ms) {
  const to = view.to_ms ?? now_ms;
  return { from: to - view.span_ms, to };
}

/** The view zoomed by `factor` (below 1: closer) around the moment `at_ms`; one that follows the present goes on to. */
export function zoomed(view, factor, at_ms, now_ms) {
  const span = Math.min(LONGEST_MS, Math.max(SHORTEST_MS, view.span_ms * factor));
  if (view.to_ms === null) return { ...view, span_ms: span };
  const { from, to } = rangeOf(view, now_ms);
  const share = (to - at_ms) / (to - from);
  return { ...view, span_ms: span, to_ms: at_ms + span * share };
}

/** The view moved by so many milliseconds; back at the present, it follows it again. */
export function panned(view, by_ms, now_ms) {
  const to = rangeOf(view, now_ms).to + by_ms;
  const isBack = to >= now_ms && !view.paused;
  return { ...view, to_ms: isBack ? null : Math.min(to, now_ms + view.span_ms / 2) };
}

const STILL_SHARE = 0.03; // of the width: two fingers never close in on quite the same place

/** The view between two fingers: closer by `factor`, and what was at a share of the width is now at another one. */
export function pinched(view, factor, from_share, to_share, now_ms) {
  const at = rangeOf(view, now_ms).from + view.span_ms * from_share;
  const next = zoomed(view, factor, at, now_ms);
  if (next.to_ms === null && Math.abs(to_share - from_share) < STILL_SHARE) return next;
  return panned(next, at + next.span_ms * (1 - to_share) - rangeOf(next, now_ms).to, now_ms);
}

export function showing(view, from_ms, to_ms) {
  return { ...view, span_ms: Math.max(SHORTEST_MS, to_ms - from_ms), to_ms };
}

/** The view with this moment in its middle, unless it is on the screen already. */
export function centred(view, at_ms, now_ms) {
  const { from, to } = rangeOf(view, now_ms);
  const air = (to - from) * 0.05;
  return at_ms >= from + air && at_ms <= to - air ? view : { ...view, to_ms: at_ms + view.span_ms / 2 };
}
