// What stands where no lanes are, and how to get some.

import { clock } from "./clock.js";

/** Title, text, and the button's label with what it does to the view; null while there is something to see. */
export function emptiness(view, { answer, model, isAway, from, to }) {
  if (answer === null) {
    return isAway
      ? ["The tracer does not answer", "Start it with kvtrail serve. This page looks again every 2 seconds.", null]
      : ["Asking the tracer …", "The first lanes show in a moment.", null];
  }
  const { begin, end } = model.requests;
  for (let n = 0; n < begin.length; n++) {
    if (begin[n] + model.origin <= to && end[n] + model.origin >= from) return null;
  }
  if (from < model.origin || Math.min(to, model.now) > model.until) return null; // the answer is on its way
  if (view.q || view.engine || view.connector || view.status) {
    const clear = { q: "", engine: "", connector: "", status: "" };
    return ["No request fits", "None of this time has what you look for.", ["Clear search and filters", clear]];
  }
  if (answer.heard_ns === null && view.to_ms === null) {
    const how = "The tracer is up and listens. Serve a model with the traced connector, or run kvtrail demo, which drives a real engine on the CPU.";
    return ["No requests yet", how, ["Look back an hour", { span_ms: 3_600_000 }]];
  }
  const last = answer.heard_ns === null ? "" : ` An engine was last heard at ${clock(answer.heard_ns / 1e6, 1000)} UTC.`;
  return ["Nothing ran in this time", `No request overlaps it.${last}`, ["Look back an hour", { span_ms: 3_600_000, to_ms: null, paused: false }]];
}

/** Show it, or nothing; `change` is called with what the button does to the view. */
export function showEmpty(box, empty, change) {
  box.hidden = empty === null;
  if (empty === null) return;
  const [title, text, offer] = empty;
  box.querySelector("strong").textContent = title;
  box.querySelector("p").textContent = text;
  const button = box.querySelector("button");
  button.hidden = offer === null;
  if (offer === null) return;
  button.textContent = offer[0];
  button.onclick = () => change(offer[1]);
}
