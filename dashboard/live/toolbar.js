// The buttons and fields above the lanes, and the words around them.

import { clock, count, day, lasting } from "./clock.js";
import { counts, spent, TRANSFERS } from "./model.js";

const STATUSES = ["queued", "admitted", "loading", "running", "preempted", "finished", "failed", "abandoned"];

/** Show the view in the toolbar. */
export function showControls(find, view, answer, marks) {
  find(".pause").textContent = view.paused ? "▶ Resume" : "❚❚ Pause";
  find(".pause").setAttribute("aria-pressed", String(view.paused));
  find(".follow").setAttribute("aria-pressed", String(view.to_ms === null));
  for (const button of find(".spans").children) {
    button.setAttribute("aria-pressed", String(Number(button.dataset.span) === Math.round(view.span_ms)));
  }
  find(".next").disabled = marks === 0;
  options(find(".engine"), "All engines", answer?.engines ?? [], view.engine);
  options(find(".connector"), "All connectors", answer?.connectors ?? [], view.connector);
  options(find(".status"), "Any status", STATUSES, view.status);
  const q = find(".q");
  if (q.getRootNode().activeElement !== q) q.value = view.q;
}

function options(select, all, names, chosen) {
  const wanted = chosen && !names.includes(chosen) ? [...names, chosen] : names;
  const held = [...select.options].slice(1).map((option) => option.value);
  if (select.options.length === 0 || held.join("\n") !== wanted.join("\n")) {
    select.replaceChildren(new Option(all, ""), ...wanted.map((name) => new Option(short(name), name)));
  }
  select.value = chosen;
}

/** An engine that nobody named has a UUID, of which the beginning is enough, as on the other pages. */
function short(name) {
  return /^[0-9a-f]{8}-[0-9a-f-]{27}$/.test(name) ? name.slice(0, 8) : name;
}

/** Colours in the order of a request's life; one that is done leaves nothing to colour. */
export function showLegend(element, theme, phases) {
  const last = ["running", "preempted", "load", "store", "failed"];
  const names = [...phases.filter((name) => !last.includes(name) && name !== "done"), ...last];
  const items = names.map((name) => {
    const item = document.createElement("li");
    const swatch = document.createElement("i");
    swatch.style.background = theme.phases[name];
    if (TRANSFERS.has(name)) swatch.className = "strip";
    item.append(swatch, name === "running" ? "running (prefill or decode)" : name);
    return item;
  });
  for (const [name, text] of [["mark", "finding"], ["gap", "spans missing"]]) {
    const item = document.createElement("li");
    const swatch = document.createElement("i");
    swatch.className = name;
    if (name === "mark") swatch.style.background = theme.wrong;
    item.append(swatch, text);
    items.push(item);
  }
  element.replaceChildren(...items);
}

/** The sentence on how it stands: live, still, paused, or without an answer. */
export function stateOf(view, { isAway, heard_ms, asked_ms, silent_ms }) {
  if (isAway) return ["wrong", `The tracer does not answer, since ${clock(asked_ms, 1000)} UTC. Trying again.`];
  if (silent_ms > 8000) return ["wrong", `No update for ${lasting(silent_ms - (silent_ms % 1000))}: is the dashboard still running?`];
  if (view.paused) return ["still", `Paused at ${clock(view.paused_ms ?? view.to_ms, 1000)} UTC`];
  if (view.to_ms !== null) return ["still", "The range stands still; its requests go on"];
  if (heard_ms && asked_ms - heard_ms > 30_000) return ["live", `Live; nothing heard since ${clock(heard_ms, 1000)} UTC`];
  return ["live", "Live"];
}

/** What the window holds, in one line. */
export function factsOf(model, answer, from, to) {
  const inside = counts(model, from - model.origin, to - model.origin);
  const step = to - from < 10_000 ? 1 : 1000;
  const range = `${day(from)} ${clock(from, step)} to ${clock(to, step)} UTC`;
  const shown = answer.is_sample
    ? `${count(inside.requests, "request")}, a sample ${answer.has_all_findings ? "with every finding" : "of the findings too"}`
    : count(inside.requests, "request");
  const parts = [range, shown, count(inside.findings, "finding")];
  if (answer.is_sample) parts.push(`about ${count(Number(answer.known.toPrecision(2)))} requests were near this time`);
  if (!answer.is_whole) parts.push("searching took too long and was given up: narrow the range");
  return { text: parts.join(" · "), gaps: gapsOf(model, from - model.origin, to - model.origin) };
}

function gapsOf(model, from, to) {
  const gaps = model.gaps.filter((gap) => gap.to >= from && gap.from <= to);
  if (gaps.length === 0) return "";
  const first = Math.min(...gaps.map((gap) => gap.from));
  const last = Math.max(...gaps.map((gap) => gap.to));
  const missing = gaps.reduce((sum, gap) => sum + gap.missing, 0);
  const step = last - first < 10_000 ? 1 : 1000;
  const between = `${clock(model.origin + first, step)} and ${clock(model.origin + last, step)}`;
  return `${count(missing, "span")} missing between ${between}`;
}

export function selectionText(model, select) {
  const [from, to] = select;
  const inside = counts(model, from - model.origin, to - model.origin);
  const sums = spent(model, from - model.origin, to - model.origin);
  const all = sums.reduce((sum, [, ms]) => sum + ms, 0);
  const most = sums.slice(0, 3).map(([name, ms]) => `${name} ${Math.round((100 * ms) / all)} %`);
  const range = `${clock(from)} to ${clock(to)} (${lasting(to - from)})`;
  const parts = [range, count(inside.requests, "request"), count(inside.findings, "finding"), most.join(", ")];
  return parts.filter(Boolean).join(" · ");
}
