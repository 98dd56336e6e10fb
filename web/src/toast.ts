/** Short messages at the foot of the page, read out as well. */

import { h } from "./dom";

const SHOWN_MS = 4500;

export class Toast {
  readonly element: HTMLElement;
  private readonly box = h("p", { className: "toast", hidden: true });
  private readonly voice = h("p", { className: "unseen", "aria-live": "polite" });
  private timer = 0;

  constructor() {
    this.element = h("div", { className: "toasts", role: "status" }, this.box, this.voice);
  }

  say(text: string, wrong = false): void {
    window.clearTimeout(this.timer);
    this.box.textContent = text;
    this.box.hidden = false;
    this.box.classList.toggle("wrong", wrong);
    this.timer = window.setTimeout(() => (this.box.hidden = true), wrong ? 2 * SHOWN_MS : SHOWN_MS);
  }

  /** For screen readers only. */
  announce(text: string): void {
    this.voice.textContent = text;
  }
}
