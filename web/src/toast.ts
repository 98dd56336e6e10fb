/** Short messages at the bottom of the page, also for screen readers. */

import { count, h } from "./dom";
import type { Model } from "./model";

const SHOWN_MS = 4500;

export function createToast(model: Model): HTMLElement {
  const box = h("p", { className: "toast", hidden: true });
  const announcement = h("p", { className: "unseen", "aria-live": "polite" });
  let timer = 0;
  model.on(["message"], () => {
    const { text, isError } = model.message;
    window.clearTimeout(timer);
    box.textContent = text;
    box.hidden = false;
    box.classList.toggle("wrong", isError);
    timer = window.setTimeout(() => (box.hidden = true), isError ? 2 * SHOWN_MS : SHOWN_MS);
  });
  model.on(["picked"], () => {
    announcement.textContent = model.picked === null ? "no samples picked" : `${count(model.picked.rows.length)} sample${model.picked.rows.length === 1 ? "" : "s"} picked`;
  });
  return h("div", { className: "toasts", role: "status" }, box, announcement);
}
