/** Comparison of two selections: where they agree, and what only one of them drops. */

import { comparisonGroup } from "./colours";
import { button, count, h, percent, select, setOptions, swatch } from "./dom";
import { errorText } from "./dataSource";
import type { Model } from "./model";
import type { Thumbnails } from "./thumbnails";

const SHOWN = 60;
const GROUPS = [
  ["both keep", "both_keep", "#9aa2ad"],
  ["both drop", "both_drop", "#8a5fd0"],
  ["only A drops", "only_a_drops", "#e8643c"],
  ["only B drops", "only_b_drops", "#2fa866"],
] as const;

export class CompareTab {
  readonly element: HTMLElement;
  private readonly other = select("compare-with", "Compare with", () => void this.load(true));
  private readonly body = h("div");
  /** Increases with every request; answers to older ones are ignored. */
  private turn = 0;

  constructor(private readonly model: Model, private readonly thumbnails: Thumbnails) {
    const choice = h("div", { className: "row" }, h("span", {}, "A is this selection, B is"), this.other);
    this.element = h("section", { className: "compare", "aria-label": "Compare" }, choice, this.body);
    model.on(["selections"], () => this.updateOptions());
    model.on(["comparison"], () => this.render());
    model.on(["decisions"], () => {
      if (model.comparison !== null) void this.load();
    });
    this.updateOptions();
    this.render();
  }

  private updateOptions(): void {
    const others = this.model.info.selections.filter((name) => name !== this.model.info.name);
    const hint = others.length ? "choose…" : "no other selection is open";
    setOptions(this.other, [["", hint], ...others.map((name) => [name, name] as const)]);
    this.other.disabled = others.length === 0;
  }

  /** Load the comparison again; if it was just `chosen`, colour the map by it. */
  async load(chosen = false): Promise<void> {
    const { model } = this;
    const turn = ++this.turn;
    if (this.other.value === "") {
      model.setComparison(null);
      if (model.colourBy === "comparison") model.setColour("class");
      return;
    }
    try {
      const comparison = await model.source.compare(this.other.value);
      if (turn !== this.turn) return;
      model.setComparison(comparison);
      if (chosen) model.setColour("comparison");
    } catch (error) {
      this.body.replaceChildren(h("p", { className: "note wrong" }, errorText(error)));
    }
  }

  private render(): void {
    const numbers = this.model.comparison?.numbers;
    if (numbers === undefined) {
      const command = h("code", {}, "thresher view A.parquet B.parquet");
      this.body.replaceChildren(h("p", { className: "note" }, "Open several selections with ", command, ", or save one here with “Save as”."));
      return;
    }
    const groups = GROUPS.map(([text, key, colour], group) => {
      const pick = (): void => this.model.pick(this.rowsOf(group), text);
      return button("group", pick, { "data-group": text }, swatch(colour), h("b", {}, count(numbers[key])), text);
    });
    const missing = numbers.not_in_b ? ` ${count(numbers.not_in_b)} samples are not in B.` : "";
    this.body.replaceChildren(
      h("div", { className: "groups" }, ...groups),
      h("p", { className: "note", id: "jaccard" }, `Of the samples that either drops, both drop ${percent(numbers.jaccard)}.${missing}`),
      h("div", { className: "pair" }, this.side(2, `Only ${numbers.a} drops`), this.side(3, `Only ${numbers.b} drops`)),
    );
  }

  private rowsOf(group: number): Int32Array {
    return this.model.suspicious().filter((row) => comparisonGroup(this.model, row) === group);
  }

  private side(group: number, title: string): HTMLElement {
    const tiles = Array.from(this.rowsOf(group).subarray(0, SHOWN), (row) => this.thumbnails.button(row));
    const none = tiles.length === 0 ? h("p", { className: "note" }, "none") : null;
    return h("div", {}, h("h3", {}, title), none, h("div", { className: "mosaic" }, ...tiles));
  }
}
