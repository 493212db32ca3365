// The toolbar and the legend.

import { TRANSFERS } from "./model.js";
import { rangeText } from "./address.js";

const STATUSES = ["queued", "admitted", "loading", "running", "preempted", "finished", "failed", "abandoned"];

/** Show the view in the toolbar. */
export function showControls(find, view, answer, model, now_ms) {
  const press = (button, isPressed) => button.setAttribute("aria-pressed", String(isPressed));
  find(".pause").textContent = view.paused ? "▶ Resume" : "❚❚ Pause";
  press(find(".pause"), view.paused);
  press(find(".follow"), view.to_ms === null);
  press(find(".fit"), view.fit);
  for (const button of find(".spans").querySelectorAll("[data-span]")) {
    press(button, !view.fit && Number(button.dataset.span) === Math.round(view.span_ms));
  }
  find(".next").disabled = !model?.marks.length;
  showOptions(find(".engine"), "All engines", answer?.engines ?? [], view.engine, answer?.engine_names);
  const connectors = answer?.connectors ?? [];
  showOptions(find(".connector"), "All connectors", connectors, view.connector);
  find(".connector").hidden = connectors.length < 2 && !view.connector; // nothing to choose
  showOptions(find(".status"), "Any status", STATUSES, view.status);
  const heads = model?.heads ?? [];
  find(".folds").hidden = heads.length < 2;
  find(".folds").textContent = heads.every((head) => head.isFolded) ? "Unfold all" : "Fold all";
  showText(find(".q"), view.q);
  showText(find(".typed"), rangeText(view, now_ms));
}

/** Show a field's text, unless somebody types in it. */
function showText(field, text) {
  if (field.getRootNode().activeElement !== field && field.value !== text) field.value = text;
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
    return [text, TRANSFERS.has(name) ? "strip" : "", theme.phases[name], theme.means[name]];
  });
  items.push(["finding", "mark", theme.wrong, "an event contradicts another"]);
  items.push(["engine died", "death", theme.wrong, "what was open on it is lost"]);
  items.push(["spans missing", "gap", "", "recorded, and not arrived"]);
  const signature = JSON.stringify(items);
  if (element.dataset.shows === signature) return;
  element.dataset.shows = signature;
  const elements = items.map(([text, name, colour, means]) => {
    const [item, swatch] = ["li", "i"].map((tag) => document.createElement(tag));
    swatch.className = name;
    swatch.style.background = colour;
    item.title = means;
    item.append(swatch, text);
    return item;
  });
  element.replaceChildren(...elements);
}
