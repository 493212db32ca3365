// What the toolbar's buttons and fields do, and those of the panel below the lanes.

import { copyLink } from "../copying.js";
import { linkTo } from "./address.js";

export function listenToToolbar(live) {
  const press = (selector, act) => (live.find(selector).onclick = act);
  press(".pause", () => live.pause());
  press(".fit", () => live.toFit());
  press(".follow", () => live.toNow());
  press(".in", () => live.zoom(0.6));
  press(".out", () => live.zoom(1 / 0.6));
  press(".next", () => live.step(1));
  press(".folds", () => live.fold());
  press(".copy", (event) => copyLink(linkTo(live.view, live.now(), location), event.currentTarget));
  press(".ask", () => live.help());
  press(".help button", () => live.help());
  press(".open", () => live.openFocused());
  press(".close", () => live.blur());
  press(".to", () => live.toSelection());
  press(".clear", () => live.change({ ...live.view, select: null }));
  for (const button of live.find(".spans").querySelectorAll("[data-span]")) {
    button.onclick = () => live.change({ ...live.view, span_ms: Number(button.dataset.span), fit: false });
  }
  for (const name of ["engine", "connector", "status"]) {
    live.find(`.${name}`).onchange = (event) => live.change({ ...live.view, [name]: event.target.value });
  }
  live.find(".q").oninput = (event) => live.change({ ...live.view, q: event.target.value.trim() });
  listenToTyped(live, live.find(".typed"));
}

/** Enter has the page read what was typed: it knows the same words on all pages. */
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

/** Mark what was typed if it could not be read, and leave it to be mended. */
export function markTyped(field, isRead) {
  if (isRead) field.blur();
  else field.setAttribute("aria-invalid", "true");
}
