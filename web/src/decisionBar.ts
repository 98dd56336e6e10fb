/** Keep, drop or relabel the picked samples or the focused one, with a reason. */

import { button, count, h, icon } from "./dom";
import { NO_ROW, type Model } from "./model";

export class DecisionBar {
  readonly element: HTMLElement;
  private readonly reason = h("input", { id: "reason", type: "text", maxlength: 200, placeholder: "Reason", title: "Optional: why these samples are kept, dropped or relabelled", "aria-label": "Reason for keeping or dropping" });
  /** Offers the likeliest other class of the focused sample. */
  readonly newLabel: HTMLInputElement = h("input", {
    ...{ id: "relabel", type: "text", placeholder: "New label", "aria-label": "New label: name, number or first letters; Enter applies it" },
    onfocus: () => (this.newLabel.placeholder = this.model.otherClasses(this.model.focus)[0] ?? "New label"),
    onkeydown: (event: KeyboardEvent) => (event.key === "Enter" ? this.relabel() : event.key === "Escape" ? (this.newLabel.value = "") : undefined),
  });
  private readonly keep = button("act keep", () => this.decide(true), { id: "keep" });
  private readonly drop = button("act drop", () => this.decide(false), { id: "drop" });

  constructor(private readonly model: Model) {
    const [fields, buttons] = [h("span", { className: "row fields" }, this.reason, this.newLabel), h("span", { className: "row" }, this.keep, this.drop)];
    this.element = h("div", { className: "row actions", hidden: !model.source.live }, fields, buttons);
    model.on(["picked", "focus", "filter", "decisions", "preview"], () => this.update());
    this.update();
  }

  /** Keep or drop `rows`; by default the picked samples, else the focused one. Returns whether it was saved. */
  async decide(keep: boolean, rows: ArrayLike<number> = this.targets(), label: number | null = null): Promise<boolean> {
    const reason = this.reason.value;
    this.reason.value = "";
    const saved = await this.model.decide(Array.from(rows), keep, reason, label);
    if (!saved && this.reason.value === "") this.reason.value = reason;
    return saved;
  }

  /** Keep or drop the focused sample, else the picked ones. */
  decideFocused(keep: boolean, label: number | null = null): Promise<boolean> {
    return this.decide(keep, this.model.focus === NO_ROW ? this.targets() : [this.model.focus], label);
  }

  private async relabel(): Promise<void> {
    const typed = this.newLabel.value;
    const label = this.model.findClass(typed || this.newLabel.placeholder);
    if (label < 0) return this.model.notify("This is not one class: type its name, its number or more of its first letters.", true);
    this.newLabel.value = "";
    this.newLabel.blur();
    if (!(await this.decideFocused(true, label)) && this.newLabel.value === "") this.newLabel.value = typed;
  }

  private targets(): ArrayLike<number> {
    const { picked, focus } = this.model;
    const visible = this.model.visible();
    if (picked !== null) return visible === null ? picked.rows : picked.rows.filter((row) => visible[row] === 1);
    return focus === NO_ROW ? [] : [focus];
  }

  private update(): void {
    const targets = this.targets().length;
    for (const [element, word, sign] of [[this.keep, "Keep", "keep"], [this.drop, "Drop", "drop"]] as const) {
      element.disabled = targets === 0;
      element.replaceChildren(icon(sign), targets > 1 ? `${word} ${count(targets)}` : word);
      element.title = targets === 0 ? "Lasso samples on the map, or choose one" : `${word} (${sign[0]})`;
    }
  }
}
