// Details of one request or finding: the card beside the pointer, and the panel below the lanes, which does not cover a lane.

import { described } from "./cursor.js";
import { clock } from "./time.js";

/** The card beside the pointer, shown while the pointer rests. */
export class Card {
  constructor(element, field) {
    this.element = element;
    this.field = field;
  }

  hide() {
    this.element.hidden = true;
  }

  request(model, number, at, where) {
    this.#show(described(model, number, at), where);
  }

  mark(model, mark, where) {
    this.#show(markText(model, mark), where);
  }

  #show({ title, wrong, lines }, [x, y]) {
    this.element.replaceChildren(element("strong", "", title), ...paragraphs(wrong, lines));
    this.element.hidden = false;
    const { clientWidth, clientHeight } = this.field;
    const { offsetWidth, offsetHeight } = this.element;
    const left = x + 14 + offsetWidth > clientWidth ? x - 14 - offsetWidth : x + 14;
    const top = y + 18 + offsetHeight > clientHeight ? y - 18 - offsetHeight : y + 18;
    this.element.style.left = `${Math.max(4, left)}px`;
    this.element.style.top = `${Math.max(4, top)}px`;
  }
}

/** Show the focused finding, or the request selected by keyboard, in the panel; hide the panel if there is neither. */
export function showDetail(panel, model, { focused, chosen }) {
  const text = focused ? markText(model, focused) : chosen >= 0 ? described(model, chosen) : null;
  panel.hidden = text === null;
  if (text === null) return;
  const content = JSON.stringify(text);
  if (panel.dataset.content === content) return; // replacing the text would clear the user's selection in it
  panel.dataset.content = content;
  panel.querySelector(".what").replaceChildren(element("strong", focused ? "wrong" : "", text.title), ...paragraphs(text.wrong, text.lines));
  panel.querySelector(".open").hidden = Boolean(focused) && focused.lane < 0;
}

/** The text of a finding. */
export function markText(model, mark) {
  const { external, request } = model.requests;
  const engine = mark.lane < 0 ? "" : model.heads[model.headOf[mark.lane]].name;
  return {
    title: mark.title,
    wrong: [`could: ${mark.severity}; did: ${mark.did}`],
    lines: [
      mark.lane >= 0 && `request ${external[mark.lane] || request[mark.lane]} on ${engine}`,
      `${clock(model.origin + mark.at)} UTC`,
      `rule ${mark.rule}`,
      mark.known && `known: ${mark.known}`,
    ].filter(Boolean),
  };
}

function paragraphs(wrong, lines) {
  return [...wrong.map((text) => element("p", "wrong", text)), ...lines.map((text) => element("p", "", text))];
}

function element(tag, className, textContent) {
  return Object.assign(document.createElement(tag), { className, textContent });
}
