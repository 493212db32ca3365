// Moments and lengths of time as people read them, in UTC, and where the axis has its ticks.

const STEPS_MS = [
  0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 10e3, 15e3, 30e3,
  60e3, 120e3, 300e3, 600e3, 900e3, 1800e3, 3600e3, 7200e3, 10_800e3, 21_600e3, 43_200e3, 86_400e3,
];

export function ticks(from_ms, to_ms, most) {
  const step = STEPS_MS.find((each) => (to_ms - from_ms) / each <= most) ?? STEPS_MS.at(-1);
  const found = [];
  for (let n = Math.ceil(from_ms / step); n * step <= to_ms; n++) found.push(n * step);
  return { step, found };
}

/** A moment, as finely as `step_ms` needs it: 12:00, 12:00:01, 12:00:01.250. */
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

/** A length of time with its unit: 9 µs, 2.31 ms, 1.24 s, 2 min 03 s. */
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
