// The engines' heads over their rows, each a button that folds and unfolds, and the announcement of what is out of sight.

import { HEAD } from "./rows.js";
import { clock, count } from "./time.js";

/** Buttons stay the same elements from update to update: one that is replaced while it is pressed is never clicked. */
export class Heads {
  #buttons = new Map(); // by engine

  constructor(box, fold) {
    this.box = box;
    this.fold = fold;
  }

  /** `inside` has each engine's requests and findings in the range; `room` is how high the lanes are. */
  show(model, scroll, room, inside) {
    const wanted = new Set();
    model.heads.forEach((head, n) => {
      const bottom = head.bottom - scroll;
      if (bottom <= 0 || head.top - scroll >= room) return;
      wanted.add(head.engine);
      const button = this.#of(head.engine);
      // A head stays in sight while one of its rows is.
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

/** The folded engines after a press on one of them, or on the button for all. */
export function foldedAfter(folded, heads, engine) {
  const all = heads.map((head) => head.engine);
  if (engine === undefined) return all.every((each) => folded.includes(each)) ? [] : all;
  return folded.includes(engine) ? folded.filter((each) => each !== engine) : [...folded, engine];
}

function holding({ requests, findings }) {
  return [count(requests, "request"), findings > 0 && count(findings, "finding")].filter(Boolean).join(" · ");
}

function deathText(model, death) {
  const lost = death.lost ? `, ${count(death.lost, "request")} lost` : "";
  return `died ${clock(model.origin + death.at, 1000)}${death.ended_by ? ` of ${death.ended_by}` : ""}${lost}`;
}

function setText(button, selector, text) {
  const element = button.querySelector(selector);
  if (element.textContent !== text) element.textContent = text;
}

/** What lies out of sight above (`by` -1) or below (1): words, and where to scroll to; null if there is nothing. */
export function outOfSight(model, place, inside, room, by) {
  const isOut = (top, height) => (by > 0 ? top - place.scroll > room - height : top - place.scroll < 0);
  const away = model.heads.map((head, n) => ({ ...head, ...inside[n] })).filter((each) =>
    each.requests > 0 && (by > 0 ? isOut(each.top, 2 * HEAD) : each.bottom <= place.scroll));
  const tops = model.marks
    .filter((mark) => mark.lane >= 0 && mark.at >= place.from && mark.at <= place.to)
    .map((mark) => model.tops[model.row[mark.lane]])
    .filter((top) => isOut(top, HEAD / 2));
  if (away.length === 0 && tops.length === 0) return null;
  const engines = away.length === 1 ? `${away[0].name}, ${count(away[0].requests, "request")}` : count(away.length, "engine");
  const words = [away.length > 0 && engines, tops.length > 0 && count(tops.length, "finding")].filter(Boolean);
  const goals = [...away.map((each) => each.top), ...(away.length ? [] : tops.map((top) => top - HEAD))];
  return { text: `${words.join(" · ")} ${by > 0 ? "below" : "above"}`, scroll: by > 0 ? Math.min(...goals) : Math.max(...goals) };
}

/** Announce it in a button that scrolls there, or hide the button. */
export function announce(button, out, scrollTo) {
  button.hidden = out === null;
  if (out === null) return;
  const text = `${button.classList.contains("below") ? "↓" : "↑"} ${out.text}`;
  if (button.textContent !== text) button.textContent = text;
  button.onclick = () => scrollTo(out.scroll);
}
