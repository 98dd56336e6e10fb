/** The log of decisions, newest first. */

import { count, h } from "./dom";
import type { Model } from "./model";

export class History {
  readonly element = h("section", { className: "history", "aria-label": "Decisions" });

  constructor(private readonly model: Model) {
    model.on(["decisions"], () => {
      if (!this.element.hidden) void this.render();
    });
  }

  async render(): Promise<void> {
    const entries = await this.model.source.log().catch(() => []);
    if (entries.length === 0) {
      this.element.replaceChildren(
        h("p", { className: "note" }, "No one has overruled the filter yet. Choose samples and press k to keep them or d to drop them; u takes it back."),
      );
      return;
    }
    const items = entries.map((entry) => {
      const verb = entry.keep ? "kept" : "dropped";
      const what = `${entry.kind === "set" ? "" : `${entry.kind}: `}${verb} ${entry.count === 1 ? (entry.ids[0] ?? "") : `${count(entry.count)} samples`}`;
      return h(
        "li",
        { className: entry.kind },
        h("span", { className: `dot ${entry.keep ? "kept" : "dropped"}`, "aria-hidden": "true" }),
        h("span", { className: "what" }, what),
        h("time", {}, new Date(entry.time * 1000).toLocaleString()),
        entry.reason ? h("q", {}, entry.reason) : null,
      );
    });
    this.element.replaceChildren(h("ol", {}, ...items));
  }
}
