/** The classes: legend, filter and share dropped in one list. */

import { classColour } from "./colours";
import { button, count, h, percent, swatch } from "./dom";
import type { Model } from "./model";

interface Row {
  item: HTMLElement;
  checkbox: HTMLInputElement;
  bar: HTMLElement;
  number: HTMLElement;
  count: HTMLElement;
  share: HTMLElement;
  /** What the row shows; the elements change only with it. */
  key: string;
}

export class ClassList {
  readonly element: HTMLElement;
  private readonly rows: Row[];

  constructor(private readonly model: Model) {
    const { classes } = model.info;
    this.rows = classes.map((name, label) => this.createRow(name, label));
    const all = button("quiet", () => model.hideClasses([]), { "aria-label": "Show all classes" }, "all");
    const none = button("quiet", () => model.hideClasses(classes.keys()), { "aria-label": "Show none of the classes" }, "none");
    this.element = h(
      "section",
      { className: "panel classes-panel", "aria-label": "Classes" },
      h("div", { className: "row spread" }, h("h2", {}, "Dropped per class"), h("span", {}, all, none)),
      h("ul", { className: "classes" }, ...this.rows.map((row) => row.item)),
    );
    model.on(["decisions", "preview", "filter"], () => this.refresh());
    this.refresh();
  }

  private createRow(name: string, label: number): Row {
    const onchange = (): void => this.toggle(label, checkbox.checked);
    const checkbox = h("input", { type: "checkbox", checked: true, "aria-label": `Show ${name}`, onchange });
    const only = button("only", () => this.showOnly(label), { "aria-label": `Show only ${name}` }, "only");
    const [bar, dropped, share] = [h("span", { className: "bar" }), h("b"), h("span")];
    const number = h("span", { className: "number" }, dropped, share);
    const colour = swatch(classColour(label, this.model.info.classes.length));
    const title = h("label", {}, checkbox, colour, h("span", { className: "text", title: name }, name));
    const item = h("li", {}, title, only, h("span", { className: "track", "aria-hidden": "true" }, bar), number);
    return { item, checkbox, bar, number, count: dropped, share, key: "" };
  }

  private toggle(label: number, shown: boolean): void {
    const hidden = new Set(this.model.hiddenClasses);
    if (shown) hidden.delete(label);
    else hidden.add(label);
    this.model.hideClasses(hidden);
  }

  /** Show only one class; a second click shows all again. */
  private showOnly(label: number): void {
    const others = [...this.model.info.classes.keys()].filter((other) => other !== label);
    const already = this.model.hiddenClasses.size === others.length && !this.model.hiddenClasses.has(label);
    this.model.hideClasses(already ? [] : others);
  }

  private refresh(): void {
    const { classCounts: counts, hiddenClasses } = this.model;
    const largest = counts.reduce((most, one) => Math.max(most, one.total ? one.dropped / one.total : 0), 1e-9);
    this.rows.forEach((row, label) => {
      const { dropped, total, overridden } = counts[label] ?? { dropped: 0, total: 0, overridden: 0 };
      const share = total ? dropped / total : 0;
      const shown = !hiddenClasses.has(label);
      const key = `${dropped} ${total} ${overridden} ${share / largest} ${shown}`;
      if (key === row.key) return;
      row.key = key;
      row.bar.style.width = `${(100 * share) / largest}%`;
      row.count.textContent = count(dropped);
      row.share.textContent = ` ${percent(share)}`;
      row.number.title = `${count(dropped)} of ${count(total)} dropped, ${count(overridden)} decided by hand`;
      row.checkbox.checked = shown;
      row.item.classList.toggle("off", !shown);
    });
  }
}
