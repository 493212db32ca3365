// Draws the lanes: axis, phases, names. `place` says where: {width, height, from, to, scroll}, times after the origin.

import { clock, ticks } from "./clock.js";
import { TRANSFERS } from "./model.js";
import { HEAD, ROW } from "./rows.js";
import { hatch } from "./theme.js";

export const RULER = 30;
const BAR_TOP = 13; // within a row: the name stands above the bar
const BAR = 10;
const STRIP = 4; // of it, for a transfer
const NAME_LEAST = 84; // a shorter rest of a name says nothing

export const xOf = (place, at) => ((at - place.from) / (place.to - place.from)) * place.width;
export const atOf = (place, x) => place.from + (x / place.width) * (place.to - place.from);
export const yOf = (model, place, row) => RULER + model.tops[row] - place.scroll;

export function paintGround(pen, model, place, theme) {
  pen.clearRect(0, 0, place.width, place.height);
  pen.fillStyle = theme.background;
  pen.fillRect(0, 0, place.width, place.height);
  const { step, found } = ticks(place.from + model.origin, place.to + model.origin, place.width / 110);
  pen.strokeStyle = theme.faint;
  pen.lineWidth = 1;
  pen.beginPath();
  for (const tick of found) {
    const x = Math.round(xOf(place, tick - model.origin)) + 0.5;
    pen.moveTo(x, RULER);
    pen.lineTo(x, place.height);
  }
  pen.stroke();
  return { step, found };
}

export function paintRuler(pen, model, place, theme, { step, found }) {
  pen.fillStyle = theme.background;
  pen.fillRect(0, 0, place.width, RULER);
  pen.strokeStyle = theme.border;
  pen.beginPath();
  pen.moveTo(0, RULER - 0.5);
  pen.lineTo(place.width, RULER - 0.5);
  for (const tick of found) {
    const x = Math.round(xOf(place, tick - model.origin)) + 0.5;
    pen.moveTo(x, RULER - 7);
    pen.lineTo(x, RULER - 1);
  }
  pen.stroke();
  pen.fillStyle = theme.muted;
  pen.font = `12px ${theme.font}`;
  pen.textBaseline = "middle";
  for (const tick of found) {
    const text = clock(tick, step);
    const half = pen.measureText(text).width / 2;
    const x = xOf(place, tick - model.origin);
    // One that would be cut at the edge is left out.
    if (x - half >= 2 && x + half <= place.width - 2) pen.fillText(text, x - half, 13);
  }
}

export function paintHeads(pen, model, place, theme) {
  pen.font = `600 12px ${theme.font}`;
  pen.textBaseline = "middle";
  for (const head of model.heads) {
    const y = RULER + head.top - place.scroll;
    if (y > place.height || y + HEAD < RULER) continue;
    pen.fillStyle = theme.faint;
    pen.fillRect(0, y, place.width, HEAD - 4);
    pen.fillStyle = theme.muted;
    pen.fillText(`engine ${head.engine}`, 8, y + (HEAD - 4) / 2 + 0.5);
  }
}

/** All segments, a phase at a time: changing the colour is what costs. What falls on the same pixel is drawn once. */
export function paintSegments(pen, model, place, theme) {
  const { lane, begin, end, goes_on } = model.segments;
  const scale = place.width / (place.to - place.from);
  const order = model.phases.map((name, phase) => [name, phase]);
  order.sort((a, b) => TRANSFERS.has(a[0]) - TRANSFERS.has(b[0]));
  for (const [name, phase] of order) {
    const isTransfer = TRANSFERS.has(name);
    pen.fillStyle = theme.phases[name] ?? theme.muted;
    let [lastRow, lastX] = [-1, -1];
    for (const n of model.byPhase[phase]) {
      const until = goes_on[n] ? Math.max(end[n], place.now) : end[n];
      if (until < place.from || begin[n] > place.to) continue;
      const row = model.row[lane[n]];
      const top = RULER + model.tops[row] - place.scroll + BAR_TOP;
      if (top > place.height || top + BAR < RULER) continue;
      const x = Math.max(-2, (begin[n] - place.from) * scale);
      const right = Math.min(place.width + 2, (until - place.from) * scale);
      if (row === lastRow && right <= lastX) continue;
      const width = Math.max(1, right - x);
      [lastRow, lastX] = [row, x + width];
      if (isTransfer) pen.fillRect(x, top + BAR - STRIP, Math.max(2, width), STRIP + 1);
      else pen.fillRect(x, top, width, BAR);
    }
  }
}

/** The request's name above its bar, as much of it as there is room for; and how it ended, where that was badly. */
export function paintNames(pen, model, place, theme) {
  const { begin, end, external, request, status } = model.requests;
  pen.font = `11px ${theme.font}`;
  pen.textBaseline = "alphabetic";
  for (let row = 0; row < model.held.length; row++) {
    const y = yOf(model, place, row);
    if (y > place.height || y + ROW < RULER) continue;
    const numbers = model.held[row];
    for (let n = 0; n < numbers.length; n++) {
      const number = numbers[n];
      const left = Math.max(0, xOf(place, begin[number]));
      // A name may go on over free ground, up to the next request of the row.
      const next = n + 1 < numbers.length ? xOf(place, begin[numbers[n + 1]]) - 6 : place.width;
      if (end[number] < place.from || begin[number] > place.to) continue;
      const isBad = status[number] === "failed" || status[number] === "abandoned";
      const room = Math.min(next, place.width) - left - 2;
      const name = (external[number] || request[number]) + (isBad ? ` · ${status[number]}` : "");
      if (room < NAME_LEAST && pen.measureText(name).width > room) continue;
      pen.fillStyle = isBad ? theme.wrong : theme.muted;
      pen.fillText(fitting(pen, name, room), left + 1, y + BAR_TOP - 3);
    }
  }
}

/** A dashed line where a request may go on, or may have ended: the span that would say so is missing. */
export function paintUnsure(pen, model, place, theme) {
  const { is_unsure, end } = model.requests;
  pen.strokeStyle = theme.muted;
  pen.lineWidth = 1.5;
  pen.setLineDash([3, 5]);
  pen.beginPath();
  is_unsure.forEach((unsure, number) => {
    const y = yOf(model, place, model.row[number]) + BAR_TOP + BAR / 2;
    if (!unsure || y < RULER || y > place.height) return;
    pen.moveTo(Math.max(-8, xOf(place, end[number])), y);
    pen.lineTo(Math.min(place.width + 8, xOf(place, place.now)), y);
  });
  pen.stroke();
  pen.setLineDash([]);
}

function fitting(pen, text, room) {
  if (text.length * 5 < room || pen.measureText(text).width <= room) return text;
  let length = text.length;
  while (length > 1 && pen.measureText(`${text.slice(0, length)}…`).width > room) {
    length = Math.min(length - 1, Math.floor((length * room) / pen.measureText(`${text.slice(0, length)}…`).width));
  }
  return length > 1 ? `${text.slice(0, length)}…` : "";
}

/** A frame around the request that the pointer is on. */
export function paintHover(pen, model, place, theme, number) {
  const y = yOf(model, place, model.row[number]) + BAR_TOP - 1.5;
  const left = Math.max(-4, xOf(place, model.requests.begin[number]));
  const right = Math.min(place.width + 4, xOf(place, model.requests.end[number]));
  pen.strokeStyle = theme.text;
  pen.lineWidth = 1.5;
  pen.strokeRect(left - 1, y, Math.max(3, right - left + 2), BAR + 3);
}

/** Ground that was not asked for yet: the answer with it is on its way. */
export function paintUnasked(pen, model, place, theme) {
  for (const [from, to] of [[place.from, 0], [model.until - model.origin, place.to]]) {
    const left = Math.max(0, xOf(place, from));
    const right = Math.min(place.width, xOf(place, to));
    if (right - left < 1) continue;
    pen.fillStyle = hatch(pen, theme.faint);
    pen.fillRect(left, RULER, right - left, place.height - RULER);
    if (right - left < 80 || to > model.now - model.origin) continue;
    pen.fillStyle = theme.muted;
    pen.font = `12px ${theme.font}`;
    pen.fillText("Loading …", left + (right - left) / 2 - 26, RULER + 24);
  }
}
