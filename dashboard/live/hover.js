// What the card beside the pointer names: a request or a finding. It stays named while the pointer rests, though the picture
// slides on under it with time, and a click opens it: nothing else than what somebody has read.

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

  /** Somebody has moved the picture under the pointer: what is there now counts. */
  forget() {
    this.thing = NOTHING;
  }

  /** The same thing in another model, where requests have other numbers; nothing if it is not there. */
  refind(before, model) {
    const same = ({ mark, request, at }) => {
      const found = { mark: mark && sameMark(before, mark, model), request: sameRequest(before, request, model) };
      return (mark ? found.mark : found.request >= 0) ? { ...found, at: at + before.origin - model.origin } : NOTHING;
    };
    this.thing = same(this.thing);
    this.pressed = same(this.pressed);
  }

  /** Whether the pointer still rests where it named something. No hand is quite still: a few pixels are no movement. */
  rests([x, y]) {
    return this.isNamed && this.where !== null && Math.hypot(x - this.where[0], y - this.where[1]) <= CLICK;
  }

  /** A click begins here, on what is named if the pointer has rested since, or else on what is `hit` here. */
  press([x, y], hit) {
    this.pressed = this.rests([x, y]) ? this.thing : hit(x, y);
  }
}
