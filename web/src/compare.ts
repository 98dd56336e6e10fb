/** Two selections side by side: where they agree, and what only one of them drops. */

import { comparisonGroup } from "./colours";
import { count, h, percent, swatch } from "./dom";
import type { Model } from "./model";
import { Refused } from "./source";
import type { Thumbs } from "./thumbs";

const SHOWN = 60;
const GROUPS = ["both keep", "both drop", "only A drops", "only B drops"] as const;
const COLOURS = ["#9aa2ad", "#8a5fd0", "#e8643c", "#2fa866"];

export class Compare {
  readonly element = h("section", { className: "compare", "aria-label": "Compare" });
  private readonly choice = h("select", { id: "compare-with", "aria-label": "Compare with" });
  private readonly body = h("div");
  /** Called when a comparison is there to be looked at. */
  onCompared: () => void = () => undefined;

  constructor(
    private readonly model: Model,
    private readonly thumbs: Thumbs,
  ) {
    this.choice.addEventListener("change", () => void this.load());
    this.element.append(h("div", { className: "row" }, h("span", {}, "A is this selection, B is"), this.choice), this.body);
    model.on(["selections"], () => this.options());
    model.on(["comparison"], () => this.render());
    model.on(["decisions"], () => {
      if (model.comparison !== null) void this.load();
    });
    this.options();
    this.render();
  }

  private options(): void {
    const now = this.choice.value;
    const others = this.model.info.selections.filter((name) => name !== this.model.info.name);
    this.choice.replaceChildren(
      h("option", { value: "" }, others.length ? "choose…" : "no other selection is open"),
      ...others.map((name) => h("option", { value: name, selected: name === now }, name)),
    );
    this.choice.disabled = others.length === 0;
  }

  private async load(): Promise<void> {
    if (this.choice.value === "") {
      this.model.setComparison(null);
      if (this.model.colourBy === "comparison") this.model.setColour("class");
      return;
    }
    try {
      this.model.setComparison(await this.model.source.compare(this.choice.value));
      this.onCompared();
    } catch (error) {
      this.body.replaceChildren(h("p", { className: "note wrong" }, error instanceof Refused ? error.message : String(error)));
    }
  }

  private render(): void {
    const { comparison } = this.model;
    if (comparison === null) {
      this.body.replaceChildren(
        h(
          "p",
          { className: "note" },
          "Open several at once with ",
          h("code", {}, "thresher view A.parquet B.parquet"),
          ", or write one here with “Use this”.",
        ),
      );
      return;
    }
    const { numbers } = comparison;
    const counts = [numbers.both_keep, numbers.both_drop, numbers.only_a_drops, numbers.only_b_drops];
    const groups = GROUPS.map((text, group) =>
      h(
        "button",
        { type: "button", className: "group", "data-group": text, onclick: () => this.pick(group, text) },
        swatch(COLOURS[group] ?? ""),
        h("b", {}, count(counts[group] ?? 0)),
        text,
      ),
    );
    this.body.replaceChildren(
      h("div", { className: "groups" }, ...groups),
      h(
        "p",
        { className: "note", id: "jaccard" },
        `Of all that either drops, both drop ${percent(numbers.jaccard)}.`,
        numbers.not_in_b ? ` ${count(numbers.not_in_b)} samples are not in B.` : "",
      ),
      h("div", { className: "pair" }, this.side(2, `Only ${numbers.a} drops`), this.side(3, `Only ${numbers.b} drops`)),
    );
  }

  private rowsOf(group: number): number[] {
    return Array.from(this.model.suspicious()).filter((row) => comparisonGroup(this.model, row) === group);
  }

  private pick(group: number, text: string): void {
    this.model.pick(this.rowsOf(group), text);
  }

  private side(group: number, title: string): HTMLElement {
    const rows = this.rowsOf(group).slice(0, SHOWN);
    return h(
      "div",
      {},
      h("h3", {}, title),
      rows.length === 0 ? h("p", { className: "note" }, "none") : null,
      h(
        "div",
        { className: "mosaic" },
        ...rows.map((row) =>
          h(
            "button",
            { type: "button", className: "neighbour", title: this.model.describe(row), "aria-label": this.model.describe(row), onclick: () => this.model.setFocus(row) },
            this.thumbs.canvas(row),
          ),
        ),
      ),
    );
  }
}
