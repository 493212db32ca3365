// The keyboard. Keys count wherever the page has the focus, but not while somebody types.

import { panned, showing, zoomed } from "./range.js";

export function listenToKeys(live) {
  const pan = (share) => live.change(panned(live.view, live.view.span_ms * share, live.now()));
  const zoom = (factor) => live.zoom(factor);
  const toSelection = () => live.view.select && live.change(showing(live.view, ...live.view.select));
  const doing = {
    ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15), a: () => pan(-0.15), d: () => pan(0.15),
    ArrowUp: () => live.scrollBy(-52), ArrowDown: () => live.scrollBy(52),
    "+": () => zoom(0.6), "=": () => zoom(0.6), w: () => zoom(0.6), "-": () => zoom(1 / 0.6), s: () => zoom(1 / 0.6),
    n: () => live.step(1), N: () => live.step(-1), z: toSelection, l: () => live.toNow(), " ": () => live.pause(),
    "/": () => live.find(".q").focus(), "?": () => live.help(), Enter: () => live.openFocused(), Escape: () => live.escape(),
  };

  const listen = (event) => {
    const target = event.composedPath()[0];
    const types = target.matches?.("input, textarea, select, [contenteditable]");
    if (types && event.key === "Escape") target.blur();
    if (types || event.ctrlKey || event.metaKey || event.altKey) return;
    // A button or a link is pressed by its own keys.
    if ((event.key === " " || event.key === "Enter") && target.matches?.("button, a, summary")) return;
    const act = doing[event.key];
    if (!act || act() === false) return;
    event.preventDefault();
  };
  document.addEventListener("keydown", listen);
  return () => document.removeEventListener("keydown", listen);
}
