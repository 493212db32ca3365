// What surrounds the lanes: buttons and filters, the sentences, the legend, the card beside the pointer, and what shows
// in place of lanes where there are none.

import { counts, segmentAt, spent, TRANSFERS } from "./model.js";
import { clock, count, day, lasting } from "./time.js";

const STATUSES = ["queued", "admitted", "loading", "running", "preempted", "finished", "failed", "abandoned"];

/** Show the view in the toolbar. */
export function showControls(find, view, answer, marks) {
  const press = (button, isPressed) => button.setAttribute("aria-pressed", String(isPressed));
  find(".pause").textContent = view.paused ? "▶ Resume" : "❚❚ Pause";
  press(find(".pause"), view.paused);
  press(find(".follow"), view.to_ms === null);
  for (const button of find(".spans").children) press(button, Number(button.dataset.span) === Math.round(view.span_ms));
  find(".next").disabled = marks === 0;
  showOptions(find(".engine"), "All engines", answer?.engines ?? [], view.engine, answer?.engine_names);
  showOptions(find(".connector"), "All connectors", answer?.connectors ?? [], view.connector);
  showOptions(find(".status"), "Any status", STATUSES, view.status);
  const q = find(".q");
  if (q.getRootNode().activeElement !== q) q.value = view.q;
}

/** The options of a filter; `texts` has those that do not show as they are. */
function showOptions(select, all, names, chosen, texts = {}) {
  const wanted = chosen && !names.includes(chosen) ? [...names, chosen] : names;
  const options = wanted.map((name) => new Option(texts[name] ?? name, name));
  const signature = (each) => each.map((option) => `${option.value} ${option.text}`).join("\n");
  if (select.options.length === 0 || signature([...select.options].slice(1)) !== signature(options)) {
    select.replaceChildren(new Option(all, ""), ...options);
  }
  select.value = chosen;
}

/** Colours in the order of a request's life; `done` has nothing to colour. */
export function showLegend(element, theme, phases) {
  const last = ["running", "preempted", "load", "store", "failed"];
  const names = [...phases.filter((name) => !last.includes(name) && name !== "done"), ...last];
  const items = names.map((name) => {
    const text = name === "running" ? "running (prefill or decode)" : name;
    return [text, TRANSFERS.has(name) ? "strip" : "", theme.phases[name]];
  });
  items.push(["finding", "mark", theme.wrong], ["spans missing", "gap", ""]);
  const elements = items.map(([text, name, colour]) => {
    const [item, swatch] = ["li", "i"].map((tag) => document.createElement(tag));
    swatch.className = name;
    swatch.style.background = colour;
    item.append(swatch, text);
    return item;
  });
  element.replaceChildren(...elements);
}

/** The sentences around the lanes: the state, what the range and the selection hold, or why there is nothing to see.
 *  `change` is called with the changes of the view that a button offers. */
export function showSentences(find, view, known, change) {
  const { answer, model, from, to } = known;
  const [is, text] = stateOf(view, known);
  const state = find(".state");
  if (state.textContent !== text) state.textContent = text; // a screen reader announces each change
  state.dataset.is = is;
  const facts = model ? factsOf(model, answer, from, to) : { text: "", gaps: "" };
  const bold = Object.assign(document.createElement("b"), { textContent: facts.gaps });
  find(".facts").replaceChildren(facts.text, facts.gaps ? " · " : "", bold);
  const hasSelection = Boolean(view.select && model);
  find(".under").classList.toggle("chosen", hasSelection);
  const hint = "Drag along the time axis to select a range; click a request to open it; ? shows all keys.";
  find(".selected").textContent = hasSelection ? selectionText(model, view.select) : hint;
  showEmpty(find(".empty"), emptyText(view, known), change);
}

/** Whether the picture is live, still, paused, or without an answer: a class and a sentence. */
function stateOf(view, { answer, isAway, came_ms }) {
  const asked_ms = answer?.now_ms ?? Date.now();
  const heard_ms = answer?.heard_ns ? answer.heard_ns / 1e6 : null;
  const silent_ms = Date.now() - came_ms;
  if (isAway) return ["wrong", `The tracer does not answer, since ${clock(asked_ms, 1000)} UTC. Trying again.`];
  if (silent_ms > 8000) return ["wrong", `No update for ${lasting(silent_ms - (silent_ms % 1000))}: is the dashboard still running?`];
  if (view.paused) return ["still", `Paused at ${clock(view.paused_ms ?? view.to_ms, 1000)} UTC`];
  if (view.to_ms !== null) return ["still", "The range is fixed; requests in it still update"];
  if (heard_ms && asked_ms - heard_ms > 30_000) return ["live", `Live; no spans since ${clock(heard_ms, 1000)} UTC`];
  return ["live", "Live"];
}

/** What the range holds, in a line, and what is missing in it. */
function factsOf(model, answer, from, to) {
  const inside = counts(model, from - model.origin, to - model.origin);
  const step = to - from < 10_000 ? 1 : 1000;
  const requests = count(inside.requests, "request");
  const sample = answer.has_all_findings ? "a sample with every finding" : "a sample of the findings too";
  const parts = [`${day(from)} ${clock(from, step)} to ${clock(to, step)} UTC`];
  parts.push(answer.is_sample ? `${requests}, ${sample}` : requests, count(inside.findings, "finding"));
  if (answer.is_sample) parts.push(`about ${count(Number(answer.known.toPrecision(2)))} requests were near this time`);
  if (!answer.is_whole) parts.push("the search took too long and was stopped: narrow the range");
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

function selectionText(model, [from, to]) {
  const inside = counts(model, from - model.origin, to - model.origin);
  const sums = spent(model, from - model.origin, to - model.origin);
  const all = sums.reduce((sum, [, ms]) => sum + ms, 0);
  const most = sums.slice(0, 3).map(([name, ms]) => `${name} ${Math.round((100 * ms) / all)} %`);
  const range = `${clock(from)} to ${clock(to)} (${lasting(to - from)})`;
  const parts = [range, count(inside.requests, "request"), count(inside.findings, "finding"), most.join(", ")];
  return parts.filter(Boolean).join(" · ");
}

/** What shows where there are no lanes: title, text, and a button's label with its change of the view; else null. */
function emptyText(view, { answer, model, isAway, from, to }) {
  if (answer === null) {
    return isAway
      ? ["The tracer does not answer", "Start it with kvtrail serve. This page looks again every 2 seconds.", null]
      : ["Asking the tracer …", "The first lanes show in a moment.", null];
  }
  if (counts(model, from - model.origin, to - model.origin).requests > 0) return null;
  if (from < model.origin || Math.min(to, model.now) > model.until) return null; // the answer is on its way
  if (view.q || view.engine || view.connector || view.status) {
    const clear = { q: "", engine: "", connector: "", status: "" };
    return ["No request matches", "Nothing in this time matches the search and filters.", ["Clear search and filters", clear]];
  }
  if (answer.heard_ns === null && view.to_ms === null) {
    const how = "The tracer is up and listening. Serve a model with the traced connector, or run kvtrail demo, which drives a real engine on the CPU.";
    return ["No requests yet", how, ["Look back an hour", { span_ms: 3_600_000 }]];
  }
  const last = answer.heard_ns === null ? "" : ` The last spans came at ${clock(answer.heard_ns / 1e6, 1000)} UTC.`;
  return ["Nothing ran in this time", `No request overlaps it.${last}`, ["Look back an hour", { span_ms: 3_600_000, to_ms: null, paused: false }]];
}

/** Show that text, or nothing; `change` is called with the button's change of the view. */
function showEmpty(box, empty, change) {
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

/** The card beside the pointer, or at the finding in focus. */
export class Tip {
  constructor(element, field) {
    this.element = element;
    this.field = field;
  }

  hide() {
    this.element.hidden = true;
  }

  request(model, number, at, where) {
    const { external, request, status, verdict, findings, begin, end, is_open, is_unsure, complete, connector } = model.requests;
    const doing = segmentAt(model, number, at);
    const so_far = is_unsure[number] ? "seen for" : is_open[number] ? "so far" : "lasted";
    const wrong = [
      findings[number] > 0 && count(findings[number], "finding"),
      (!complete[number] || is_unsure[number]) && "Spans are missing: more is not known",
    ];
    const lines = [
      doing && `${doing.name} for ${lasting(doing.end - doing.begin)}`,
      `${status[number]}, verdict ${verdict[number]}`,
      `began ${clock(model.origin + begin[number])}, ${so_far} ${lasting(end[number] - begin[number])}`,
      connector[number],
    ];
    this.#show(external[number] || request[number], wrong, lines, where);
  }

  /** A finding; with `open` the card stays, and has a button that calls it. */
  mark(model, mark, where, open) {
    const name = mark.lane < 0 ? "" : model.requests.external[mark.lane] || model.requests.request[mark.lane];
    const lines = [name && `request ${name}`, `${clock(model.origin + mark.at)} UTC`, mark.healed && "healed by the guard"];
    const button = document.createElement("button");
    Object.assign(button, { type: "button", textContent: "Open the request", onclick: open });
    this.#show(mark.title, [`${mark.severity}, rule ${mark.rule}`], lines, where, open && mark.lane >= 0 ? [button] : []);
    this.element.classList.toggle("stays", Boolean(open));
  }

  #show(title, wrong, lines, [x, y], buttons = []) {
    const line = (tag, className) => (text) => Object.assign(document.createElement(tag), { className, textContent: text });
    const said = JSON.stringify([title, wrong, lines, buttons.length]);
    // A button that is replaced while it is being pressed is never clicked.
    if (said !== this.said || this.element.hidden) {
      const content = [...wrong.filter(Boolean).map(line("p", "wrong")), ...lines.filter(Boolean).map(line("p", ""))];
      this.element.replaceChildren(line("strong", "")(title), ...content, ...buttons);
      this.said = said;
    }
    this.element.classList.remove("stays");
    this.element.hidden = false;
    const { clientWidth, clientHeight } = this.field;
    const { offsetWidth, offsetHeight } = this.element;
    const left = x + 14 + offsetWidth > clientWidth ? x - 14 - offsetWidth : x + 14;
    const top = y + 14 + offsetHeight > clientHeight ? y - 14 - offsetHeight : y + 14;
    this.element.style.left = `${Math.max(4, left)}px`;
    this.element.style.top = `${Math.max(4, top)}px`;
  }
}
