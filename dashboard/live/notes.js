// Draws what stands over the lanes: findings, missing spans, the selection, and where the known present ends.

import { clock } from "./clock.js";
import { RULER, xOf, yOf } from "./paint.js";
import { HEAD, ROW } from "./rows.js";
import { hatch } from "./theme.js";

const BAR_MIDDLE = 18;
const HALF = 6;

export function paintGaps(pen, model, place, theme) {
  for (const gap of model.gaps) {
    const left = xOf(place, gap.from);
    const right = Math.max(left + 3, xOf(place, gap.to));
    if (right < 0 || left > place.width) continue;
    // Over the rows of the engine that lost them; the axis has a mark in any case.
    const head = model.heads.find((each) => each.engine === gap.engine);
    if (head) {
      const top = Math.max(RULER, RULER + head.top - place.scroll);
      const bottom = RULER + head.top + HEAD + head.rows * ROW - place.scroll;
      pen.fillStyle = hatch(pen, theme.isDark ? "rgba(255, 107, 94, 0.42)" : "rgba(217, 45, 32, 0.30)");
      pen.fillRect(left, top, right - left, Math.max(0, bottom - top));
    }
    pen.fillStyle = theme.wrong;
    pen.fillRect(left, RULER - 3, right - left, 3);
  }
}

/** A finding is a red diamond where it happened; one of no request stands on the axis. */
export function paintMarks(pen, model, place, theme, focused) {
  pen.lineWidth = 1.5;
  for (const mark of model.marks) {
    const [x, y] = markPlace(model, place, mark);
    if (x < -HALF || x > place.width + HALF || y > place.height + HALF || (mark.lane >= 0 && y < RULER)) continue;
    const half = mark === focused ? HALF + 2 : HALF;
    pen.beginPath();
    pen.moveTo(x, y - half);
    pen.lineTo(x + half, y);
    pen.lineTo(x, y + half);
    pen.lineTo(x - half, y);
    pen.closePath();
    pen.fillStyle = theme.wrong;
    pen.fill();
    pen.strokeStyle = mark === focused ? theme.text : theme.background;
    pen.stroke();
  }
}

export function markPlace(model, place, mark) {
  const x = xOf(place, mark.at);
  return mark.lane < 0 ? [x, RULER - 8] : [x, yOf(model, place, model.row[mark.lane]) + BAR_MIDDLE];
}

export function markAt(model, place, x, y) {
  let [best, least] = [null, 9];
  for (const mark of model.marks) {
    const [left, top] = markPlace(model, place, mark);
    const away = Math.hypot(x - left, y - top);
    if (away < least) [best, least] = [mark, away];
  }
  return best;
}

export function paintSelection(pen, model, place, theme, select) {
  const left = xOf(place, select[0] - model.origin);
  const right = xOf(place, select[1] - model.origin);
  pen.globalAlpha = 0.14;
  pen.fillStyle = theme.primary;
  pen.fillRect(left, 0, right - left, place.height);
  pen.globalAlpha = 1;
  pen.fillRect(left - 1, 0, 1.5, place.height);
  pen.fillRect(right, 0, 1.5, place.height);
}

/** The present, up to which there is knowledge; beyond it there is none. */
export function paintEnd(pen, model, place, theme, { at, text, isWrong }) {
  const x = xOf(place, at - model.origin);
  if (x > place.width - 1) return;
  const left = Math.max(0, x);
  pen.fillStyle = theme.background;
  pen.fillRect(left, RULER, place.width - left, place.height - RULER);
  pen.fillStyle = hatch(pen, theme.faint);
  pen.fillRect(left, RULER, place.width - left, place.height - RULER);
  pen.fillStyle = isWrong ? theme.wrong : theme.primary;
  if (x >= 0) pen.fillRect(x, RULER, 1.5, place.height - RULER);
  pen.font = `12px ${theme.font}`;
  const said = text ? `${text} ${clock(at, 1000)}` : "";
  const width = pen.measureText(said).width;
  if (said && place.width - left > width + 14) {
    pen.fillStyle = isWrong ? theme.wrong : theme.muted;
    pen.fillText(said, left + 8, RULER + 18);
  }
}
