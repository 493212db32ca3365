// The mouse, or a finger: drag to move, drag the axis to select, wheel with Ctrl to zoom, click to open.

import { markAt } from "./notes.js";
import { atOf, RULER } from "./paint.js";
import { requestAt } from "./model.js";
import { panned, zoomed } from "./range.js";

const CLICK = 4; // pixels that a hand may tremble
const NEAR = 6; // pixels beside a request that still mean it

export function listenToPointer(live) {
  const { canvas } = live;
  let held = null;

  const placeOf = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  canvas.onpointerdown = (event) => {
    if (event.button !== 0 || !live.model) return;
    const [x, y] = placeOf(event);
    held = { x, y, lastX: x, lastY: y, selects: y < RULER || event.shiftKey, moved: false };
    canvas.setPointerCapture(event.pointerId);
  };

  canvas.onpointermove = (event) => {
    if (!live.model) return;
    const [x, y] = placeOf(event);
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

  canvas.onpointerup = (event) => {
    const was = held;
    held = null;
    canvas.classList.remove("moving");
    if (!was || was.moved) return;
    const [x, y] = placeOf(event);
    const thing = thingAt(live, x, y);
    if (thing.mark && thing.mark.lane < 0) live.focus(thing.mark);
    else if (thing.request >= 0) live.open(thing.request);
    else if (was.selects) live.change({ ...live.view, select: null });
  };
  canvas.onpointercancel = () => (held = null);
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

function thingAt(live, x, y) {
  const place = live.place();
  const mark = markAt(live.model, place, x, y);
  if (mark) return { mark, request: mark.lane, at: mark.at };
  const row = y < RULER ? -1 : live.rowAt(y);
  const at = atOf(place, x);
  const near = ((place.to - place.from) / place.width) * NEAR;
  return { mark: null, request: row < 0 ? -1 : requestAt(live.model, row, at, near), at };
}
