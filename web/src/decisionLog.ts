/** The log of decisions, newest first. */

import { h } from "./dom";
import type { Model } from "./model";

const EMPTY = "No decisions yet. Choose samples and press k to keep or d to drop them; u undoes a decision.";

export class DecisionLog {
  readonly element = h("section", { className: "history", "aria-label": "Decisions" });

  constructor(private readonly model: Model) {}

  async render(): Promise<void> {
    const entries = await this.model.source.log().catch(() => []);
    const items = entries.map(({ kind, keep, reason, text, time }) => {
      const state = keep ? "kept" : "dropped";
      const what = `${kind === "set" ? "" : `${kind}: `}${text}`;
      return h(
        "li",
        { className: kind },
        h("span", { className: `dot ${state}`, "aria-hidden": "true" }),
        h("span", { className: "what" }, what),
        h("time", {}, new Date(time * 1000).toLocaleString()),
        reason ? h("q", {}, reason) : null,
      );
    });
    this.element.replaceChildren(items.length > 0 ? h("ol", {}, ...items) : h("p", { className: "note" }, EMPTY));
  }
}
