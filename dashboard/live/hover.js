// The item that the card beside the pointer names: a request or a finding. It stays named while the pointer rests, even if the
// picture moves under it as time passes, and a click opens exactly this item.

import { sameMark, sameRequest } from "./cursor.js";
import { CLICK } from "./time.js";

export const NOTHING = { mark: null, request: -1 };

export class Hover {
  thing = NOTHING;
  pressed = NOTHING; // what the click that has begun is about
  where = null; // the pointer's place, in pixels; null if it is elsewhere

  get isNamed() {
    return this.thing.mark !== null || this.thing.request >= 0;
  }

  point(thing, where) {
    this.thing = thing;
    this.where = where;
  }

  /** The user has moved the picture under the pointer: the item that is there now becomes the target. */
  forget() {
    this.thing = NOTHING;
  }

  /** The same item in another model, where requests have other numbers, if it is there. */
  refind(before, model) {
    const same = ({ mark, request, at }) => {
      const found = { mark: mark && sameMark(before, mark, model), request: sameRequest(before, request, model) };
      return (mark ? found.mark : found.request >= 0) ? { ...found, at: at + before.origin - model.origin } : NOTHING;
    };
    this.thing = same(this.thing);
    this.pressed = same(this.pressed);
  }

  /** Whether the pointer still rests on its target. A movement of a few pixels does not count. */
  rests([x, y]) {
    return this.isNamed && this.where !== null && Math.hypot(x - this.where[0], y - this.where[1]) <= CLICK;
  }

  /** A click begins: on the target if the pointer has rested since, or else on the item `hit` at this position. */
  press([x, y], hit) {
    this.pressed = this.rests([x, y]) ? this.thing : hit(x, y);
  }
}
