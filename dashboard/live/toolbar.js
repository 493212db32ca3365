// The toolbar, the legend, and the buttons of the panel below the lanes.

import { rangeText } from "./address.js";
import { TRANSFERS } from "./model.js";

/** Show the view in the toolbar. */
export function showControls(find, view, model, now_ms) {
  const press = (button, isPressed) => button.setAttribute("aria-pressed", String(isPressed));
  find(".pause").textContent = view.to_ms === null ? "❚❚ Pause" : "▶ Now";
  press(find(".pause"), view.to_ms === null);
  press(find(".fit"), view.fit);
  for (const button of find(".spans").querySelectorAll("[data-span]")) {
    press(button, !view.fit && Number(button.dataset.span) === Math.round(view.span_ms));
  }
  find(".next").disabled = !model?.marks.length;
  const heads = model?.heads ?? [];
  find(".folds").hidden = heads.length < 2;
  find(".folds").textContent = heads.every((head) => head.isFolded) ? "Unfold all" : "Fold all";
  showText(find(".typed"), rangeText(view, now_ms));
}

/** Show a field's text, unless the user is typing in it. */
function showText(field, text) {
  if (field.getRootNode().activeElement !== field && field.value !== text) field.value = text;
}

/** Colours in the order of a request's phases; `done` has none. */
export function showLegend(element, theme, phases) {
  const last = ["running", "preempted", "load", "store", "failed"];
  const names = [...phases.filter((name) => !last.includes(name) && name !== "done"), ...last];
  const items = names.map((name) => {
    const text = name === "running" ? "running (prefill or decode)" : name;
    return [text, TRANSFERS.has(name) ? "strip" : "", theme.phases[name], theme.means[name]];
  });
  items.push(["finding", "mark", theme.wrong, "events contradict each other"]);
  items.push(["engine died", "death", theme.wrong, "its open requests are lost"]);
  items.push(["spans missing", "gap", "", "recorded, but not arrived"]);
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

export function listenToToolbar(live) {
  const press = (selector, act) => (live.find(selector).onclick = act);
  press(".pause", () => live.pause());
  press(".fit", () => live.toFit());
  press(".in", () => live.zoom(0.6));
  press(".out", () => live.zoom(1 / 0.6));
  press(".next", () => live.step(1));
  press(".folds", () => live.fold());
  press(".ask", () => live.help());
  press(".help button", () => live.help());
  press(".open", () => live.openFocused());
  press(".close", () => live.blur());
  for (const button of live.find(".spans").querySelectorAll("[data-span]")) {
    button.onclick = () => live.change({ ...live.view, span_ms: Number(button.dataset.span), fit: false });
  }
  listenToTyped(live, live.find(".typed"));
}

/** Enter sends the typed time to the page, which parses it as on all pages. */
function listenToTyped(live, field) {
  field.onfocus = () => field.select();
  field.oninput = () => field.removeAttribute("aria-invalid");
  field.onblur = () => {
    field.removeAttribute("aria-invalid");
    live.redraw();
  };
  field.onkeydown = (event) => {
    if (event.key === "Enter") live.type(field.value);
  };
}

/** Mark typed text that could not be parsed, and keep it for correction. */
export function markTyped(field, isRead) {
  if (isRead) field.blur();
  else field.setAttribute("aria-invalid", "true");
}
