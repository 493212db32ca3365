// Mouse, touch and keyboard. Drag to move, click to open; wheel with Ctrl, or two fingers, to zoom.

import { NOTHING } from "./hover.js";
import { requestAt } from "./model.js";
import { RULER } from "./paint.js";
import { CLICK, panned, pinched, zoomed } from "./time.js";

const NEAR = 6; // pixels beside a request that still hit it

export function listenToPointer(live) {
  const { canvas } = live;
  const fingers = new Map(); // the position of each finger, by pointer id
  let drag = null;
  let pinch = null;

  const placeOf = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  canvas.onpointerdown = (event) => {
    if (event.button !== 0 || !live.model) return;
    const [x, y] = placeOf(event);
    fingers.set(event.pointerId, [x, y]);
    canvas.setPointerCapture(event.pointerId);
    live.hover.press([x, y], (...at) => thingAt(live, ...at));
    drag = fingers.size === 1 ? { x, y, lastX: x, lastY: y, moved: false } : null;
    if (fingers.size === 2) pinch = { ...betweenThem(fingers), view: live.view };
  };

  canvas.onpointermove = (event) => {
    if (!live.model) return;
    const [x, y] = placeOf(event);
    if (fingers.has(event.pointerId)) fingers.set(event.pointerId, [x, y]);
    if (pinch && fingers.size === 2) {
      const { middle, apart } = betweenThem(fingers);
      const { width } = live.place();
      live.change(pinched(pinch.view, pinch.apart / apart, pinch.middle / width, middle / width, live.now()));
      return;
    }
    if (pinch) return; // one finger was lifted first: the other one alone does not drag
    if (!drag) {
      if (!live.hover.rests([x, y])) live.point(thingAt(live, x, y), [x, y]);
      return;
    }
    drag.moved ||= Math.hypot(x - drag.x, y - drag.y) > CLICK;
    if (!drag.moved) return;
    live.point(NOTHING, null);
    canvas.classList.add("moving");
    live.scrollBy(drag.lastY - y);
    const by_ms = ((drag.lastX - x) * live.view.span_ms) / live.place().width;
    if (by_ms) live.change(panned(live.view, by_ms, live.now()));
    [drag.lastX, drag.lastY] = [x, y];
  };

  const lift = (event) => {
    fingers.delete(event.pointerId);
    if (fingers.size === 0) pinch = null;
    const ended = drag;
    drag = null;
    return ended;
  };

  canvas.onpointerup = (event) => {
    const ended = lift(event);
    canvas.classList.remove("moving");
    if (!ended || ended.moved) return;
    const thing = live.hover.pressed;
    if (thing.mark && thing.mark.lane < 0) live.focus(thing.mark);
    else if (thing.request >= 0) live.open(thing.request);
  };
  canvas.onpointercancel = lift;
  canvas.onpointerleave = () => live.point(NOTHING, null);

  const wheel = (event) => {
    if (!live.model) return;
    const place = live.place();
    const isSideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (event.ctrlKey || event.metaKey) {
      const at = place.at(placeOf(event)[0]) + live.model.origin;
      live.change(zoomed(live.view, Math.exp(Math.sign(event.deltaY) * 0.2), at, live.now()));
    } else if (isSideways || event.shiftKey) {
      const by = (isSideways ? event.deltaX : event.deltaY) / place.width;
      live.change(panned(live.view, by * live.view.span_ms, live.now()));
    } else if (!live.scrollBy(event.deltaY)) {
      return; // nothing to scroll here: let the page scroll
    }
    event.preventDefault();
  };
  live.find(".field").addEventListener("wheel", wheel, { passive: false });
}

/** The midpoint of two fingers, and their distance, in pixels. */
function betweenThem(fingers) {
  const [[x1, y1], [x2, y2]] = fingers.values();
  return { middle: (x1 + x2) / 2, apart: Math.max(1, Math.hypot(x2 - x1, y2 - y1)) };
}

/** The finding or the request at a position. */
export function thingAt(live, x, y) {
  const place = live.place();
  const mark = place.markNear(x, y);
  if (mark) return { mark, request: mark.lane, at: mark.at };
  const rows = y < RULER ? [] : live.rowsAt(y);
  const at = place.at(x);
  const near_ms = ((place.to - place.from) / place.width) * NEAR;
  return { mark: null, request: requestAt(live.model, rows, at, near_ms), at };
}

/** Keys work wherever the page has the focus, except in text fields. If the lanes got the focus by keyboard, arrows go from
 *  request to request. Returns a function that stops listening. */
export function listenToKeys(live) {
  const { canvas } = live;
  const pan = (share) => live.change(panned(live.view, live.view.span_ms * share, live.now()));
  const actions = {
    ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15),
    ArrowUp: () => live.scrollBy(-52), ArrowDown: () => live.scrollBy(52),
    "+": () => live.zoom(0.6), "=": () => live.zoom(0.6), "-": () => live.zoom(1 / 0.6),
    n: () => live.step(1), N: () => live.step(-1), " ": () => live.pause(),
    f: () => live.fold(), 0: () => live.toFit(), t: () => live.find(".typed").select(),
    "?": () => live.help(), Enter: () => live.openFocused(), Escape: () => live.escape(),
  };
  const inLanes = {
    ArrowLeft: () => live.walk({ within: -1 }), ArrowRight: () => live.walk({ within: 1 }),
    ArrowUp: () => live.walk({ rows: -1 }), ArrowDown: () => live.walk({ rows: 1 }),
  };
  // After a click into the lanes, the arrow keys move the picture, as everywhere else.
  let walks = false;
  canvas.addEventListener("focus", () => {
    walks = canvas.matches(":focus-visible");
    if (walks) live.walk({});
  });
  canvas.addEventListener("blur", () => (walks = false));

  const listen = (event) => {
    const target = event.composedPath()[0];
    const types = target.matches?.("input, textarea, select, [contenteditable]");
    if (types && event.key === "Escape") target.blur();
    if (types || event.ctrlKey || event.metaKey || event.altKey) return;
    // Buttons and links handle these keys themselves.
    if ((event.key === " " || event.key === "Enter") && target.matches?.("button, a, summary")) return;
    const act = (walks && inLanes[event.key]) || actions[event.key];
    if (act && act() !== false) event.preventDefault();
  };
  document.addEventListener("keydown", listen);
  return () => document.removeEventListener("keydown", listen);
}
