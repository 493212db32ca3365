// The live page's canvas: holds the current data, receives each answer, and draws after each change. The page's Python code
// queries the tracer: `setStateValue("view")` requests a view, and its lanes arrive as new data.

import { Card, markText, showDetail } from "./card.js";
import { described, sameMark, sameRequest, sentence, stepped } from "./cursor.js";
import { announce, foldedAfter, Heads, outOfSight } from "./heads.js";
import { Hover } from "./hover.js";
import { listenToKeys, listenToPointer, thingAt } from "./input.js";
import { Markers } from "./markers.js";
import { counts, extentOf, modelOf } from "./model.js";
import { paint, Place, RULER } from "./paint.js";
import { HEAD, rememberedRows, rememberRows, ROW } from "./rows.js";
import { HUNG_MS, showSentences } from "./sentences.js";
import { backgroundAt, setVariables, sharpen, themeOf } from "./theme.js";
import { centred, fitted, rangeOf, showing, zoomed } from "./time.js";
import { listenToToolbar, markTyped, showControls, showLegend } from "./toolbar.js";

const SEND_AFTER_MS = 250; // time without a change before the view is sent to the page
const EVERY_MS = 250;

class Live {
  constructor(root, { view, command }) {
    this.root = root;
    this.find = (selector) => root.querySelector(selector);
    this.canvas = this.find(".field canvas");
    this.pen = this.canvas.getContext("2d", { alpha: false });
    this.card = new Card(this.find(".card"), this.find(".field"));
    this.heads = new Heads(this.find(".heads"), (engine) => this.fold(engine));
    this.markers = new Markers(this.find(".markers"));
    this.rows = rememberedRows();
    this.view = { ...view, command: command.count };
    this.answer = this.model = this.focused = null;
    this.hover = new Hover();
    this.chosen = -1; // the request selected by keyboard
    this.scroll = 0;
    this.ahead_ms = 0; // the offset of the tracer's clock from the browser's
    this.listen();
  }

  listen() {
    listenToPointer(this);
    listenToToolbar(this);
    this.stopKeys = listenToKeys(this);
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.canvas);
    this.timer = setInterval(() => this.tick(), EVERY_MS);
    this.leave = () => rememberRows(this.rows);
    window.addEventListener("pagehide", this.leave);
  }

  /** Take a new answer, or none: `data` is the result of `payload` in component.py. */
  take({ data, setStateValue, setTriggerValue }) {
    Object.assign(this, { data, setStateValue, setTriggerValue });
    this.came_ms = Date.now();
    if (data.command.count !== this.view.command) this.obey(data.command);
    // In a separate task after Streamlit's: two short delays are not noticeable, one long delay is.
    if (data.answer !== null) {
      if (!data.is_away) this.ahead_ms = data.answer.now_ms - Date.now();
      clearTimeout(this.building);
      this.building = setTimeout(() => this.build(data.answer), 0);
    } else this.show();
  }

  build(answer) {
    const before = this.model;
    this.answer = answer;
    this.model = modelOf(answer, this.rows, this.view.folded);
    if (before) this.refocus(before);
    if (this.view.fit) this.view = { ...this.view, ...fitted(extentOf(this.model), this.now()) };
    const root = this.find(".live");
    root.dataset.answers = Number(root.dataset.answers ?? 0) + 1;
    this.show();
  }

  show() {
    const root = this.find(".live");
    this.theme = themeOf(root, this.data.palette);
    setVariables(root, this.theme);
    if (this.answer) showLegend(this.find(".legend"), this.theme, this.answer.phases);
    this.redraw();
  }

  /** Focus the same finding and request as before, though the numbers of requests have changed. */
  refocus(before) {
    this.chosen = sameRequest(before, this.chosen, this.model);
    this.focused &&= sameMark(before, this.focused, this.model);
    this.hover.refind(before, this.model);
    if (!this.hover.isNamed) this.card.hide();
  }

  now() {
    // Without an answer the present is unknown: keep the last one.
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

  /** Show another view. After the user has chosen a range, it no longer fits its contents. */
  change(view) {
    const isSame = view.span_ms === this.view.span_ms && view.to_ms === this.view.to_ms;
    this.view = { ...view, fit: view.fit && isSame };
    this.hover.forget();
    this.sendSoon();
  }

  sendSoon() {
    clearTimeout(this.sending);
    this.sending = setTimeout(() => this.send(), SEND_AFTER_MS);
    this.redraw();
  }

  /** Have the page parse a time; it commands the view. */
  type(text) {
    this.send(); // a later report of the view would undo the typed time
    this.setTriggerValue("typed", text);
  }

  /** Show the view that the page commands: the parsed input, or the URL's view after a step in the browser's history. */
  obey({ count, view }) {
    markTyped(this.find(".typed"), view !== null);
    this.view = { ...(view ?? this.view), command: count };
    this.sendSoon();
  }

  send() {
    clearTimeout(this.sending);
    this.sending = null;
    this.setStateValue("view", this.view);
  }

  /** Apply the offer of a button that is shown in place of lanes. */
  offered(changes) {
    if (changes.fit) this.toFit();
    else this.change({ ...this.view, ...changes });
  }

  toFit() {
    const range = this.model ? fitted(extentOf(this.model), this.now()) : {};
    this.view = { ...this.view, ...range, fit: true };
    this.sendSoon();
  }

  /** Fold an engine's rows into one, or unfold them; without an engine all of them. */
  fold(engine) {
    if (!this.model) return;
    const { model } = this;
    this.change({ ...this.view, folded: foldedAfter(this.view.folded, model.heads, engine) });
    this.model = modelOf(this.answer, this.rows, this.view.folded);
    this.refocus(model);
  }

  zoom(factor) {
    const { from, to } = rangeOf(this.view, this.now());
    const focus = this.focused ? this.model.origin + this.focused.at : NaN;
    this.change(zoomed(this.view, factor, focus >= from && focus <= to ? focus : (from + to) / 2, this.now()));
  }

  /** Pause, or follow the present again. */
  pause() {
    this.change({ ...this.view, to_ms: this.view.to_ms === null ? this.now() : null });
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
    this.chosen = -1;
    this.card.hide();
    this.say(sentence(markText(this.model, mark)));
    if (mark.lane >= 0) this.scrollTo(this.model.row[mark.lane]);
    const { from, to } = rangeOf(this.view, this.now());
    // The range becomes fixed: the finding in focus must not move away.
    this.change(centred(showing(this.view, from, to), this.model.origin + mark.at, this.now()));
  }

  scrollTo(row) {
    const room = this.canvas.clientHeight - RULER;
    const top = this.model.tops[row];
    // An engine's head lies over the uppermost row.
    if (top - HEAD < this.scroll || top + ROW > this.scroll + room) this.scroll = Math.max(0, top - room / 2);
  }

  /** Go from request to request, up and down by rows or along one; the screen reader reads it. */
  walk(by) {
    if (!this.model) return;
    const number = stepped(this.model, this.chosen, this.place(), by);
    if (number < 0) return;
    this.chosen = number;
    this.focused = null;
    this.card.hide();
    this.say(sentence(described(this.model, number)));
    this.scrollTo(this.model.row[number]);
    const { begin, end } = this.model.requests;
    const { from, to } = this.place();
    if (end[number] < from || begin[number] > to) {
      this.change(centred(this.view, this.model.origin + begin[number], this.now()));
    } else this.redraw();
  }

  /** Announce it to screen readers. */
  say(text) {
    this.find(".said").textContent = text;
  }

  open(number) {
    const { request, engine } = this.model.requests;
    // A later report of the view would change the URL of the page that opens.
    if (this.sending) this.send();
    this.setTriggerValue("open", { request: request[number], engine: engine[number] });
  }

  /** Open the request of the focused finding, or the request selected by keyboard. */
  openFocused() {
    const number = this.focused ? this.focused.lane : this.chosen;
    return number >= 0 && this.open(number);
  }

  blur() {
    this.focused = null;
    this.chosen = -1;
    this.redraw();
  }

  help() {
    const help = this.find(".help");
    help.hidden = !help.hidden;
    (help.hidden ? this.find(".ask") : help.querySelector("button")).focus();
  }

  escape() {
    if (!this.find(".help").hidden) this.help();
    else if (this.focused || this.chosen >= 0) this.blur();
  }

  /** True if there was something to scroll. */
  scrollBy(pixels) {
    const most = Math.max(0, (this.model?.height ?? 0) - (this.canvas.clientHeight - RULER));
    const scroll = Math.min(most, Math.max(0, this.scroll + pixels));
    if (scroll === this.scroll) return false;
    this.scroll = scroll;
    this.hover.forget();
    this.redraw();
    return true;
  }

  /** The rows at a height; several if their engine is folded. */
  rowsAt(y) {
    const at = y - RULER + this.scroll;
    return this.model.tops.flatMap((top, row) => (at >= top && at < top + ROW ? [row] : []));
  }

  point(thing, where) {
    const { mark, request, at } = thing;
    const isNew = this.hover.thing.request !== request;
    this.hover.point(thing, where);
    this.canvas.classList.toggle("onrequest", request >= 0);
    if (isNew) this.redraw();
    if (mark) this.card.mark(this.model, mark, where);
    else if (request >= 0) this.card.request(this.model, request, at, where);
    else this.card.hide();
  }

  /** Redraw when the theme changes, or when the present has moved by a pixel. */
  tick() {
    if (this.theme && backgroundAt(this.find(".live")) !== this.theme.background) this.show();
    const perPixel = this.view.span_ms / Math.max(1, this.canvas.clientWidth);
    const moved = this.view.to_ms === null && this.now() - (this.drawn_ms ?? 0) >= perPixel;
    // Drawing must take only a small share of the time, however much there is to draw.
    const isRested = performance.now() - (this.rested ?? 0) > 0;
    if (this.theme && isRested && (moved || Date.now() - this.came_ms > HUNG_MS)) this.redraw();
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
    this.drawn_ms = this.now();
    const { model, view } = this;
    const { from, to } = rangeOf(view, this.drawn_ms);
    const inside = model && counts(model, from - model.origin, to - model.origin);
    this.drawWords(from, to, inside);
    showDetail(this.find(".detail"), model, this);
    // The item that has moved under a resting pointer without a target.
    if (model && this.hover.where && !this.hover.isNamed) this.point(thingAt(this, ...this.hover.where), this.hover.where);
    this.drawLanes(inside);
  }

  /** The sentences around the lanes; `inside` has the counts in the range. */
  drawWords(from, to, inside) {
    const { answer, came_ms, data, find, model, view } = this;
    showControls(find, view, model, this.drawn_ms);
    const known = { answer, model, from, to, came_ms, deaths: answer?.deaths ?? [], isAway: data.is_away, isFiltered: data.is_filtered };
    showSentences(find, view, known, inside, (changes) => this.offered(changes));
  }

  drawLanes(inside) {
    const { canvas, chosen, focused, hover, model, pen, theme } = this;
    sharpen(canvas, pen);
    if (!model) {
      pen.fillStyle = theme.background;
      pen.fillRect(0, 0, canvas.clientWidth, canvas.clientHeight);
      return;
    }
    const room = canvas.clientHeight - RULER;
    this.scroll = Math.min(this.scroll, Math.max(0, model.height - room));
    const place = this.place();
    paint(pen, place, theme, { hovered: hover.thing.request, focused, chosen, end: this.end() });
    this.markers.show(this.data.markers, place);
    this.heads.show(model, this.scroll, room, inside.heads);
    for (const [name, by] of [["above", -1], ["below", 1]]) {
      const out = outOfSight(model, place, inside.heads, room, by);
      announce(this.find(`.${name}`), out, (top) => this.scrollBy(top - this.scroll));
    }
  }

  /** The end of known time, and its reason. */
  end() {
    if (this.data.is_away) return { at: this.answer.now_ms, text: "no answer since", isWrong: true };
    return { at: this.now(), text: "", isWrong: false };
  }

  stop() {
    this.leave();
    window.removeEventListener("pagehide", this.leave);
    this.stopKeys();
    this.resized.disconnect();
    clearInterval(this.timer);
    clearTimeout(this.sending);
    clearTimeout(this.building);
    cancelAnimationFrame(this.wanted);
  }
}

const instances = new WeakMap();

/** Streamlit calls this first, and again with new data. */
export default function (component) {
  const root = component.parentElement;
  let live = instances.get(root);
  if (!live) {
    live = new Live(root, component.data);
    instances.set(root, live);
  }
  live.take(component);
  return () => {
    live.stop();
    instances.delete(root);
  };
}
