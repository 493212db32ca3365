// The live page's canvas: holds what is shown, takes each answer, and draws when something has changed. The page's Python
// asks the tracer: `setStateValue("view")` says what this wants to see, and an answer comes back as new data.

import { showControls, showLegend, showSentences, Tip } from "./controls.js";
import { listenToKeys, listenToPointer } from "./input.js";
import { modelOf, ROW, Rows } from "./model.js";
import { paint, Place, RULER, themeOf } from "./paint.js";
import { centred, rangeOf, showing, zoomed } from "./time.js";

const SEND_AFTER_MS = 250; // without a change, before the page is sent the view
const EVERY_MS = 250;

class Live {
  constructor(root, view) {
    this.root = root;
    this.find = (selector) => root.querySelector(selector);
    this.canvas = this.find("canvas");
    this.pen = this.canvas.getContext("2d", { alpha: false });
    this.tip = new Tip(this.find(".tip"), this.find(".field"));
    this.rows = new Rows();
    this.view = view;
    this.answer = this.model = this.focused = null;
    this.hovered = -1;
    this.scroll = 0;
    this.ahead_ms = 0; // how far the tracer's clock is ahead of the browser's
    this.listen();
  }

  listen() {
    listenToPointer(this);
    this.stopKeys = listenToKeys(this);
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.canvas);
    this.timer = setInterval(() => this.tick(), EVERY_MS);
    const press = (selector, act) => (this.find(selector).onclick = act);
    press(".pause", () => this.pause());
    press(".follow", () => this.toNow());
    press(".in", () => this.zoom(0.6));
    press(".out", () => this.zoom(1 / 0.6));
    press(".next", () => this.step(1));
    press(".ask", () => this.help());
    press(".help button", () => this.help());
    press(".to", () => this.toSelection());
    press(".clear", () => this.change({ ...this.view, select: null }));
    for (const button of this.find(".spans").children) {
      button.onclick = () => this.change({ ...this.view, span_ms: Number(button.dataset.span) });
    }
    for (const name of ["engine", "connector", "status"]) {
      this.find(`.${name}`).onchange = (event) => this.change({ ...this.view, [name]: event.target.value });
    }
    this.find(".q").oninput = (event) => this.change({ ...this.view, q: event.target.value.trim() });
  }

  /** A new answer, or none: `data` as `payload` in view.py makes it. */
  take({ data, setStateValue, setTriggerValue }) {
    Object.assign(this, { data, setStateValue, setTriggerValue });
    this.came_ms = Date.now();
    // In a task of its own, after what Streamlit has just done: two short blocks are not noticed, one long one is.
    if (data.answer !== null) {
      if (!data.is_away) this.ahead_ms = data.answer.now_ms - Date.now();
      clearTimeout(this.building);
      this.building = setTimeout(() => this.build(data.answer), 0);
    } else this.show();
  }

  build(answer) {
    const before = this.model;
    this.answer = answer;
    this.model = modelOf(answer, this.rows);
    if (before) this.refocus(before);
    this.hovered = -1;
    const root = this.find(".live");
    root.dataset.answers = Number(root.dataset.answers ?? 0) + 1;
    this.show();
  }

  show() {
    this.theme = themeOf(this.find(".live"));
    this.find(".live").classList.toggle("dark", this.theme.isDark);
    if (this.answer) showLegend(this.find(".legend"), this.theme, this.answer.phases);
    this.redraw();
  }

  /** Focus the same finding as before, though the numbers of requests have changed. */
  refocus(before) {
    if (!this.focused) return;
    const { at, rule } = this.focused;
    const moment = before.origin + at;
    this.focused = this.model.marks.find((m) => m.rule === rule && Math.abs(m.at + this.model.origin - moment) < 0.01) ?? null;
    if (!this.focused) this.tip.hide();
  }

  now() {
    // Without an answer the present is unknown: it stays where the last one was.
    if (this.data?.is_away && this.answer) return this.answer.now_ms;
    return Date.now() + this.ahead_ms;
  }

  place() {
    const now = this.now();
    const { from, to } = rangeOf(this.view, now);
    const { origin } = this.model;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    return new Place(this.model, { width, height, from: from - origin, to: to - origin, now: now - origin, scroll: this.scroll });
  }

  change(view) {
    this.view = view;
    clearTimeout(this.sending);
    this.sending = setTimeout(() => this.send(), SEND_AFTER_MS);
    this.redraw();
  }

  send() {
    clearTimeout(this.sending);
    this.sending = null;
    this.setStateValue("view", this.view);
  }

  zoom(factor) {
    const { from, to } = rangeOf(this.view, this.now());
    const focus = this.focused ? this.model.origin + this.focused.at : NaN;
    this.change(zoomed(this.view, factor, focus >= from && focus <= to ? focus : (from + to) / 2, this.now()));
  }

  pause() {
    const now = this.now();
    const { view } = this;
    if (view.paused) {
      const followed = view.to_ms === null || Math.abs(view.to_ms - view.paused_ms) < 1;
      this.change({ ...view, paused: false, paused_ms: null, to_ms: followed ? null : view.to_ms });
    } else this.change({ ...view, paused: true, paused_ms: now, to_ms: view.to_ms ?? now });
  }

  toSelection() {
    if (this.view.select) this.change(showing(this.view, ...this.view.select));
  }

  toNow() {
    this.change({ ...this.view, to_ms: null, paused: false, paused_ms: null });
  }

  /** Go to the next finding, or the one before. */
  step(by) {
    const marks = this.model?.marks ?? [];
    if (marks.length === 0) return;
    const place = this.place();
    const from = marks.indexOf(this.focused);
    const first = by > 0 ? marks.findIndex((mark) => mark.at >= place.from) : marks.findLastIndex((mark) => mark.at <= place.to);
    const next = from >= 0 ? (from + by + marks.length) % marks.length : Math.max(0, first);
    this.focus(marks[next]);
  }

  focus(mark) {
    this.focused = mark;
    if (mark.lane >= 0) this.scrollTo(this.model.row[mark.lane]);
    const { from, to } = rangeOf(this.view, this.now());
    // The range becomes fixed: a finding that one looks at must not move away.
    this.change(centred(showing(this.view, from, to), this.model.origin + mark.at, this.now()));
  }

  scrollTo(row) {
    const room = this.canvas.clientHeight - RULER;
    const top = this.model.tops[row];
    if (top < this.scroll || top + ROW > this.scroll + room) this.scroll = Math.max(0, top - room / 2);
  }

  open(number) {
    const { request, engine } = this.model.requests;
    // Sent later, the view would become the address of the page that opens.
    if (this.sending) this.send();
    this.setTriggerValue("open", { request: request[number], engine: engine[number] });
  }

  openFocused() {
    if (!this.focused || this.focused.lane < 0) return false;
    return this.open(this.focused.lane);
  }

  help() {
    const help = this.find(".help");
    help.hidden = !help.hidden;
    (help.hidden ? this.find(".ask") : help.querySelector("button")).focus();
  }

  escape() {
    if (!this.find(".help").hidden) this.help();
    else if (this.focused) {
      this.focused = null;
      this.tip.hide();
    }
    else if (this.view.select) return this.change({ ...this.view, select: null });
    return this.redraw();
  }

  /** True if there was something to scroll. */
  scrollBy(pixels) {
    const most = Math.max(0, (this.model?.height ?? 0) - (this.canvas.clientHeight - RULER));
    const scroll = Math.min(most, Math.max(0, this.scroll + pixels));
    if (scroll === this.scroll) return false;
    this.scroll = scroll;
    this.redraw();
    return true;
  }

  rowAt(y) {
    const at = y - RULER + this.scroll;
    return this.model.tops.findIndex((top) => at >= top && at < top + ROW);
  }

  point({ mark, request, at }, where) {
    const isNew = this.hovered !== request;
    this.hovered = request;
    this.canvas.classList.toggle("onrequest", request >= 0);
    if (isNew) this.redraw();
    if (this.focused) return;
    if (mark) this.tip.mark(this.model, mark, where);
    else if (request >= 0) this.tip.request(this.model, request, at, where);
    else this.tip.hide();
  }

  /** The picture follows the present once that has moved by a pixel. */
  tick() {
    const perPixel = this.view.span_ms / Math.max(1, this.canvas.clientWidth);
    const moved = this.view.to_ms === null && this.now() - (this.drawn_ms ?? 0) >= perPixel;
    // However much there is to draw, drawing must take only a small part of the time.
    const isRested = performance.now() - (this.rested ?? 0) > 0;
    if (this.theme && isRested && (moved || Date.now() - this.came_ms > 8000)) this.redraw();
  }

  redraw() {
    this.wanted ??= requestAnimationFrame(() => {
      this.wanted = null;
      const began = performance.now();
      this.draw();
      this.rested = performance.now() + (performance.now() - began) * 20;
    });
  }

  draw() {
    if (!this.theme || this.canvas.clientWidth === 0) return;
    const { pen, canvas, view, answer, model, theme } = this;
    const sharp = window.devicePixelRatio || 1;
    const [width, height] = [Math.round(canvas.clientWidth * sharp), Math.round(canvas.clientHeight * sharp)];
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
    this.drawn_ms = this.now();
    showControls(this.find, view, answer, model?.marks.length ?? 0);
    const known = { answer, model, isAway: this.data.is_away, came_ms: this.came_ms, ...rangeOf(view, this.drawn_ms) };
    showSentences(this.find, view, known, (changes) => this.change({ ...this.view, ...changes }));
    if (!model) {
      pen.fillStyle = theme.background;
      pen.fillRect(0, 0, width, height);
      return;
    }
    this.scroll = Math.min(this.scroll, Math.max(0, model.height - (canvas.clientHeight - RULER)));
    const place = this.place();
    paint(pen, place, theme, { hovered: this.hovered, focused: this.focused, select: view.select, end: this.end() });
    if (this.focused && (this.focused.at < place.from || this.focused.at > place.to)) this.tip.hide();
    else if (this.focused) {
      this.tip.mark(model, this.focused, place.ofMark(this.focused), () => this.openFocused());
    }
  }

  /** Where knowledge ends, and why. */
  end() {
    if (this.data.is_away) return { at: this.answer.now_ms, text: "no answer since", isWrong: true };
    if (this.view.paused) return { at: this.view.paused_ms ?? this.view.to_ms, text: "paused at", isWrong: false };
    return { at: this.now(), text: "", isWrong: false };
  }

  stop() {
    this.stopKeys();
    this.resized.disconnect();
    clearInterval(this.timer);
    clearTimeout(this.sending);
    clearTimeout(this.building);
    cancelAnimationFrame(this.wanted);
  }
}

const instances = new WeakMap();

/** Streamlit calls this at first, and again with each new data. */
export default function (component) {
  const root = component.parentElement;
  let live = instances.get(root);
  if (!live) {
    live = new Live(root, component.data.view);
    instances.set(root, live);
  }
  live.take(component);
  return () => {
    live.stop();
    instances.delete(root);
  };
}
