// The mouse, or fingers: drag to move, drag the axis to select, click to open; wheel with Ctrl, or two fingers, to zoom.

import { markAt } from "./notes.js";
import { atOf, RULER } from "./paint.js";
import { requestAt } from "./model.js";
import { panned, pinched, zoomed } from "./range.js";

const CLICK = 4; // pixels that a hand may tremble
const NEAR = 6; // pixels beside a request that still mean it

export function listenToPointer(live) {
  const { canvas } = live;
  const fingers = new Map(); // where each is that is down, by the pointer's id
  let held = null;
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
    if (fingers.size === 2) {
      pinch = { ...betweenThem(fingers), view: live.view };
      held = null;
    } else if (fingers.size === 1) held = { x, y, lastX: x, lastY: y, selects: y < RULER || event.shiftKey, moved: false };
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
    if (pinch) return; // one finger was lifted first: what it does alone is no drag
    if (!held) {
      live.point(thingAt(live, x, y), [x, y]);
      return;
    }
    held.moved ||= Math.hypot(x - held.x, y - held.y) > CLICK;
    if (!held.moved) return;
    const place = live.place();
    if (held.selects) {
      const ends = [held.x, x].map((each) => atOf(place, each) + live.model.origin);
      live.change({ ...live.view, select: ends.sort((a, b) => a - b) });
    } else {
      canvas.classList.add("moving");
      const perPixel = live.view.span_ms / place.width;
      live.scrollBy(held.lastY - y);
      if (x !== held.lastX) live.change(panned(live.view, (held.lastX - x) * perPixel, live.now()));
    }
    [held.lastX, held.lastY] = [x, y];
  };

  const lift = (event) => {
    fingers.delete(event.pointerId);
    if (fingers.size === 0) pinch = null;
    const was = held;
    held = null;
    return was;
  };

  canvas.onpointerup = (event) => {
    const was = lift(event);
    canvas.classList.remove("moving");
    if (!was || was.moved) return;
    const [x, y] = placeOf(event);
    const thing = thingAt(live, x, y);
    if (thing.mark && thing.mark.lane < 0) live.focus(thing.mark);
    else if (thing.request >= 0) live.open(thing.request);
    else if (was.selects) live.change({ ...live.view, select: null });
  };
  canvas.onpointercancel = lift;
  canvas.onpointerleave = () => live.point({ mark: null, request: -1 }, null);

  const wheel = (event) => {
    if (!live.model) return;
    const [x] = placeOf(event);
    const isSideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (event.ctrlKey || event.metaKey) {
      const at = atOf(live.place(), x) + live.model.origin;
      live.change(zoomed(live.view, Math.exp(Math.sign(event.deltaY) * 0.2), at, live.now()));
    } else if (isSideways || event.shiftKey) {
      const by = (isSideways ? event.deltaX : event.deltaY) / live.place().width;
      live.change(panned(live.view, by * live.view.span_ms, live.now()));
    } else if (!live.scrollBy(event.deltaY)) {
      return; // nothing to scroll here: the page may
    }
    event.preventDefault();
  };
  canvas.addEventListener("wheel", wheel, { passive: false });
}

/** Where the middle between two fingers is, and how far they are apart, in pixels. */
function betweenThem(fingers) {
  const [[x1, y1], [x2, y2]] = fingers.values();
  return { middle: (x1 + x2) / 2, apart: Math.max(1, Math.hypot(x2 - x1, y2 - y1)) };
}

function thingAt(live, x, y) {
  const place = live.place();
  const mark = markAt(live.model, place, x, y);
  if (mark) return { mark, request: mark.lane, at: mark.at };
  const row = y < RULER ? -1 : live.rowAt(y);
  const at = atOf(place, x);
  const near = ((place.to - place.from) / place.width) * NEAR;
  return { mark: null, request: row < 0 ? -1 : requestAt(live.model, row, at, near), at };
}
