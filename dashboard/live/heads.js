// The engines' headers above their rows, each a button that folds and unfolds them, and buttons for findings out of view.

import { HEAD, ROW } from "./rows.js";
import { clock, count } from "./time.js";

const NO_END_RECORD = "its process ended without a goodbye"; // the value on the wire, as in tracer/events/semconv.py

/** Buttons stay the same elements across updates: a button that is replaced while pressed gets no click. */
export class Heads {
  #buttons = new Map(); // by engine

  constructor(box, fold) {
    this.box = box;
    this.fold = fold;
  }

  /** `inside` has each engine's requests and findings in the range; `room` is the height of the lanes. */
  show(model, scroll, room, inside) {
    const wanted = new Set();
    model.heads.forEach((head, n) => {
      const bottom = head.bottom - scroll;
      if (bottom <= 0 || head.top - scroll >= room) return;
      wanted.add(head.engine);
      const button = this.#of(head.engine);
      // A head stays in sight while any of its rows is.
      button.style.top = `${Math.min(Math.max(0, head.top - scroll), bottom - HEAD)}px`;
      button.setAttribute("aria-expanded", String(!head.isFolded));
      const death = model.deaths.find((each) => each.engine === head.engine);
      setText(button, ".name", head.name);
      setText(button, ".holds", holding(inside[n]));
      setText(button, ".died", death ? deathText(model, death) : "");
    });
    for (const [engine, button] of this.#buttons) {
      if (wanted.has(engine)) continue;
      button.remove();
      this.#buttons.delete(engine);
    }
  }

  #of(engine) {
    const known = this.#buttons.get(engine);
    if (known) return known;
    const button = Object.assign(document.createElement("button"), { type: "button", onclick: () => this.fold(engine) });
    for (const name of ["name", "holds", "died"]) {
      button.append(Object.assign(document.createElement("span"), { className: name }), " ");
    }
    this.#buttons.set(engine, button);
    this.box.append(button);
    return button;
  }
}

/** The folded engines after a press on one head, or on the button for all. */
export function foldedAfter(folded, heads, engine) {
  const all = heads.map((head) => head.engine);
  if (engine === undefined) return all.every((each) => folded.includes(each)) ? [] : all;
  return folded.includes(engine) ? folded.filter((each) => each !== engine) : [...folded, engine];
}

function holding({ requests, findings }) {
  return [count(requests, "request"), findings > 0 && count(findings, "finding")].filter(Boolean).join(" · ");
}

function deathText(model, death) {
  const lost = death.lost ? ` with ${count(death.lost, "open request")}` : "";
  return `${howItEnded(clock(model.origin + death.at, 1000), death.ended_by)}${lost}`;
}

/** How an engine ended: by an exception, or with its process, for which recorders write a fixed text. */
export function howItEnded(at, endedBy) {
  if (endedBy === NO_END_RECORD) return `was killed at ${at}`;
  return `died at ${at}${endedBy ? ` of ${endedBy}` : ""}`;
}

function setText(button, selector, text) {
  const element = button.querySelector(selector);
  if (element.textContent !== text) element.textContent = text;
}

/** A text about findings out of view above (`by` -1) or below (1), and the scroll position; null if there are none. */
export function outOfSight(model, place, inside, room, by) {
  const [upper, lower] = [place.scroll, place.scroll + room];
  const engines = model.heads
    .map((head, n) => ({ ...head, ...inside[n] }))
    .filter(({ requests, top, bottom }) => requests > 0 && (by > 0 ? top + HEAD + ROW > lower : bottom <= upper));
  const findings = model.marks
    .filter((mark) => mark.lane >= 0 && mark.at >= place.from && mark.at <= place.to)
    .map((mark) => model.tops[model.row[mark.lane]])
    .filter((top) => (by > 0 ? top + ROW / 2 > lower : top + ROW / 2 < upper + HEAD)); // a head covers the first row
  if (engines.length === 0 && findings.length === 0) return null;
  const died = engines.filter(({ engine }) => model.deaths.some((death) => death.engine === engine));
  const named = engines.length === 1 ? `${engines[0].name}, ${count(engines[0].requests, "request")}` : count(engines.length, "engine");
  const words = [
    engines.length > 0 && named,
    died.length > 0 && (engines.length === 1 ? "died" : `${died.map(({ name }) => name).join(", ")} died`),
    findings.length > 0 && count(findings.length, "finding"),
  ];
  const tops = engines.length > 0 ? (died.length > 0 ? died : engines).map(({ top }) => top) : findings.map((top) => top - HEAD);
  return {
    text: `${words.filter(Boolean).join(" · ")} ${by > 0 ? "below" : "above"}`,
    scroll: by > 0 ? Math.min(...tops) : Math.max(...tops),
    isWrong: died.length > 0,
  };
}

/** Announce it on a button that scrolls there, or hide the button. */
export function announce(button, out, scrollTo) {
  button.hidden = out === null;
  if (out === null) return;
  button.classList.toggle("wrong", out.isWrong);
  const text = `${button.classList.contains("below") ? "↓" : "↑"} ${out.text}`;
  if (button.textContent !== text) button.textContent = text;
  button.onclick = () => scrollTo(out.scroll);
}
