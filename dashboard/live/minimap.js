// The overview above the lanes: concurrent requests, findings and deaths over a longer range, with the shown range in it.

import { clock, count, rangeOf, showing, ticks } from "./time.js";
import { sharpen, translucent } from "./theme.js";

export const CLICK = 4; // pixels that the pointer may move during a click
const LABELS = 15; // pixels at the top
const EDGE = 6; // pixels around an end of the range in which it can be dragged

export class Minimap {
  constructor(canvas, live) {
    this.canvas = canvas;
    this.live = live;
    this.pen = canvas.getContext("2d");
    this.listen();
  }

  /** The drawn extent: from the first known request, or the range, to the present. */
  range() {
    const { overview, view } = this.live;
    const now = this.live.now();
    const shown = rangeOf(view, now);
    const begun = overview?.from_ms ?? shown.from;
    const until = overview && overview.to_ms < shown.to ? shown.to : Math.min(overview?.to_ms ?? now, now);
    return { shown, from: Math.min(shown.from, begun), to: Math.max(shown.to, until) };
  }

  draw() {
    const { canvas, pen } = this;
    const { overview, theme } = this.live;
    const { clientWidth: width, clientHeight: height } = canvas;
    if (width === 0) return;
    sharpen(canvas, pen);
    pen.clearRect(0, 0, width, height);
    const { shown, from, to } = this.range();
    const x = (at) => ((at - from) / (to - from)) * width;
    if (overview) {
      this.#paintBusy(overview, x, height);
      this.#paintWrong(overview.marks, x, height);
    }
    pen.fillStyle = theme.isDark ? "rgba(0, 0, 0, 0.5)" : "rgba(120, 125, 135, 0.2)";
    const [left, right] = [x(shown.from), x(shown.to)];
    pen.fillRect(0, 0, left, height);
    pen.fillRect(right, 0, width - right, height);
    this.#paintAxis(from, to, x, width);
    pen.strokeStyle = theme.primary;
    pen.lineWidth = 2;
    pen.strokeRect(left + 1, 1, Math.max(2, right - left - 2), height - 2);
    this.#say(overview, from, to);
  }

  #paintBusy({ busy, from_ms, to_ms }, x, height) {
    const { pen } = this;
    const most = Math.max(1, ...busy);
    const each = (to_ms - from_ms) / busy.length;
    pen.fillStyle = translucent(this.live.theme.phases.running, 0.6);
    busy.forEach((requests, n) => {
      const left = x(from_ms + n * each);
      const tall = (requests / most) * (height - LABELS - 3);
      if (requests > 0) pen.fillRect(left, height - tall, Math.max(1, x(from_ms + (n + 1) * each) - left), tall);
    });
  }

  #paintWrong(marks, x, height) {
    const { pen } = this;
    pen.fillStyle = this.live.theme.wrong;
    for (const at of marks) pen.fillRect(x(at) - 1, LABELS + 2, 2, height - LABELS - 2);
    for (const { at_ms } of this.live.deaths()) {
      pen.fillRect(x(at_ms) - 1.5, 0, 3, height);
      pen.fillRect(x(at_ms) - 4.5, LABELS, 9, 3);
    }
  }

  #paintAxis(from, to, x, width) {
    const { pen } = this;
    const { theme } = this.live;
    const axis = ticks(from, to, width / 120);
    pen.font = `11px ${theme.font}`;
    pen.textBaseline = "top";
    pen.fillStyle = theme.muted;
    for (const at of axis.at) {
      const text = clock(at, axis.step);
      const half = pen.measureText(text).width / 2;
      if (x(at) - half > 2 && x(at) + half < width - 2) pen.fillText(text, x(at) - half, 3);
    }
  }

  #say(overview, from, to) {
    const parts = [`Overview, ${clock(from, 1000)} to ${clock(to, 1000)} UTC`];
    if (overview) parts.push(count(overview.marks.length, "finding"));
    const text = parts.join(": ");
    if (this.canvas.getAttribute("aria-label") !== text) this.canvas.setAttribute("aria-label", text);
  }

  listen() {
    const { canvas, live } = this;
    let drag = null;
    const xOf = (event) => event.clientX - canvas.getBoundingClientRect().left;

    canvas.onpointerdown = (event) => {
      if (event.button !== 0) return;
      const { shown, from, to } = this.range(); // stays as it is during the drag
      const at = (x) => from + (x / canvas.clientWidth) * (to - from);
      const x = xOf(event);
      const kind = this.#takesHold(x);
      drag = { x, at, shown, kind, moved: false };
      canvas.setPointerCapture(event.pointerId);
    };
    canvas.onpointermove = (event) => {
      const x = xOf(event);
      canvas.style.cursor = { move: "grab", from: "ew-resize", to: "ew-resize", new: "crosshair" }[drag?.kind ?? this.#takesHold(x)];
      if (!drag) return;
      drag.moved ||= Math.abs(x - drag.x) > CLICK;
      if (drag.moved) live.change(this.#dragged(drag, x));
    };
    canvas.onpointerup = (event) => {
      const ended = drag;
      drag = null;
      if (!ended || ended.moved || ended.kind !== "new") return;
      const { from, to } = ended.shown;
      const at = ended.at(xOf(event));
      live.change(showing(live.view, at - (to - from) / 2, at + (to - from) / 2));
    };
    canvas.onpointercancel = () => (drag = null);
  }

  /** What a press drags: an end of the range, the range, or nothing: then it begins a new range. */
  #takesHold(x) {
    const { shown, from, to } = this.range();
    const [left, right] = [shown.from, shown.to].map((at) => ((at - from) / (to - from)) * this.canvas.clientWidth);
    if (Math.abs(x - left) <= EDGE) return "from";
    if (Math.abs(x - right) <= EDGE) return "to";
    return x > left && x < right ? "move" : "new";
  }

  #dragged({ x: begun, at, shown, kind }, x) {
    const { live } = this;
    const by = at(x) - at(begun);
    const ends = {
      move: [shown.from + by, shown.to + by],
      from: [shown.from + by, shown.to],
      to: [shown.from, shown.to + by],
      new: [at(begun), at(x)],
    }[kind];
    const [from, to] = ends.sort((a, b) => a - b);
    return showing(live.view, from, Math.min(to, live.now()));
  }
}
