// The card beside the pointer, or at the finding that was gone to: what a request does, or what was found.

import { clock, lasting } from "./clock.js";
import { segmentAt } from "./model.js";

export class Tip {
  constructor(element, field) {
    this.element = element;
    this.field = field;
  }

  hide() {
    this.element.hidden = true;
  }

  request(model, number, at, [x, y]) {
    const { external, request, status, verdict, findings, begin, end, is_open, is_unsure, complete, connector } = model.requests;
    const doing = segmentAt(model, number, at);
    const lines = [
      doing && `${doing.name} for ${lasting(doing.end - doing.begin)}`,
      `${status[number]}, verdict ${verdict[number]}`,
      `began ${clock(model.origin + begin[number])}, ${is_open[number] && !is_unsure[number] ? "so far" : is_unsure[number] ? "heard for" : "lasted"} ${lasting(end[number] - begin[number])}`,
      connector[number],
    ];
    const wrong = [
      findings[number] > 0 && (findings[number] === 1 ? "1 finding" : `${findings[number]} findings`),
      (!complete[number] || is_unsure[number]) && "Spans are missing: more is not known",
    ];
    this.#fill(external[number] || request[number], lines, wrong);
    this.#put(x, y);
  }

  /** `open` is called by the button of a card that stays. */
  mark(model, mark, [x, y], open) {
    const whose = mark.lane < 0 ? "" : model.requests.external[mark.lane] || model.requests.request[mark.lane];
    const lines = [whose && `request ${whose}`, `${clock(model.origin + mark.at)} UTC`, mark.healed && "healed by the guard"];
    this.#fill(mark.title, lines, [`${mark.severity}, rule ${mark.rule}`]);
    this.element.classList.toggle("stays", Boolean(open));
    if (open && mark.lane >= 0) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "Open the request";
      button.onclick = open;
      this.element.append(button);
    }
    this.#put(x, y);
  }

  #fill(title, lines, wrong) {
    const strong = document.createElement("strong");
    strong.textContent = title;
    const told = [...wrong.map((text) => [text, "wrong"]), ...lines.map((text) => [text, ""])];
    const paragraphs = told.filter(([text]) => text).map(([text, name]) => {
      const paragraph = document.createElement("p");
      paragraph.className = name;
      paragraph.textContent = text;
      return paragraph;
    });
    this.element.classList.remove("stays");
    this.element.replaceChildren(strong, ...paragraphs);
    this.element.hidden = false;
  }

  #put(x, y) {
    const { clientWidth, clientHeight } = this.field;
    const { offsetWidth, offsetHeight } = this.element;
    const left = x + 14 + offsetWidth > clientWidth ? x - 14 - offsetWidth : x + 14;
    const top = y + 14 + offsetHeight > clientHeight ? y - 14 - offsetHeight : y + 14;
    this.element.style.left = `${Math.max(4, left)}px`;
    this.element.style.top = `${Math.max(4, top)}px`;
  }
}
