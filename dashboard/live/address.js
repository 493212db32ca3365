// The range as text.

import { clock, day, rangeOf } from "./time.js";

const UNITS_MS = { d: 86_400_000, h: 3_600_000, m: 60_000, s: 1000 };

/** The range in the syntax of the field: `now-5m to now`, `14:50:00 to 14:59:00`. */
export function rangeText(view, now_ms) {
  if (view.to_ms === null) return `now-${shortSpan(view.span_ms)} to now`;
  const { from, to } = rangeOf(view, now_ms);
  const step = to - from < 10_000 ? 1 : 1000;
  const isToday = day(from) === day(now_ms) && day(to) === day(now_ms);
  return [from, to].map((at) => `${isToday ? "" : `${day(at)} `}${clock(at, step)}`).join(" to ");
}

function shortSpan(span_ms) {
  const unit = Object.keys(UNITS_MS).find((each) => span_ms % UNITS_MS[each] === 0) ?? "s";
  return `${Math.max(1, Math.round(span_ms / UNITS_MS[unit]))}${unit}`;
}
