/** The classes: legend, filter and share dropped, in one list. */

import { classColour } from "./colours";
import { count, h, percent, swatch } from "./dom";
import type { Model } from "./model";

interface Row {
  item: HTMLElement;
  box: HTMLInputElement;
  bar: HTMLElement;
  number: HTMLElement;
  count: HTMLElement;
  share: HTMLElement;
  /** What the row shows: it is touched only when that changes. */
  key: string;
}

export class Classes {
  readonly element: HTMLElement;
  private readonly list = h("ul", { className: "classes" });
  private readonly rows: Row[];

  constructor(private readonly model: Model) {
    const classes = model.info.classes;
    this.rows = classes.map((name, label) => {
      const box = h("input", { type: "checkbox", checked: true, "aria-label": `Show ${name}` });
      box.addEventListener("change", () => this.toggle(label, box.checked));
      const bar = h("span", { className: "bar" });
      const [dropped, share] = [h("b"), h("span")];
      const number = h("span", { className: "number" }, dropped, share);
      const only = h(
        "button",
        { type: "button", className: "only", "aria-label": `Show only ${name}`, onclick: () => this.only(label) },
        "only",
      );
      const item = h(
        "li",
        {},
        h("label", {}, box, swatch(classColour(label, classes.length)), h("span", { className: "text", title: name }, name)),
        only,
        h("span", { className: "track", "aria-hidden": "true" }, bar),
        number,
      );
      return { item, box, bar, number, count: dropped, share, key: "" };
    });
    this.list.append(...this.rows.map((row) => row.item));
    const all = h("button", { type: "button", className: "quiet", "aria-label": "Show all classes", onclick: () => model.hideClasses([]) }, "all");
    const none = h(
      "button",
      { type: "button", className: "quiet", "aria-label": "Show none of the classes", onclick: () => model.hideClasses(classes.keys()) },
      "none",
    );
    this.element = h(
      "section",
      { className: "panel classes-panel", "aria-label": "Classes" },
      h("div", { className: "row spread" }, h("h2", {}, "Dropped per class"), h("span", {}, all, none)),
      this.list,
    );
    model.on(["decisions", "preview", "filter"], () => this.refresh());
    this.refresh();
  }

  private toggle(label: number, shown: boolean): void {
    const hidden = new Set(this.model.hiddenClasses);
    if (shown) hidden.delete(label);
    else hidden.add(label);
    this.model.hideClasses(hidden);
  }

  private only(label: number): void {
    const others = [...this.model.info.classes.keys()].filter((other) => other !== label);
    const already = this.model.hiddenClasses.size === others.length && !this.model.hiddenClasses.has(label);
    this.model.hideClasses(already ? [] : others);
  }

  private refresh(): void {
    const { classCounts: counts, hiddenClasses } = this.model;
    const largest = counts.reduce((most, one) => Math.max(most, one.total ? one.dropped / one.total : 0), 1e-9);
    counts.forEach((one, label) => {
      const row = this.rows[label];
      if (row === undefined) return;
      const share = one.total ? one.dropped / one.total : 0;
      const shown = !hiddenClasses.has(label);
      const key = `${one.dropped} ${one.overruled} ${share / largest} ${shown}`;
      if (key === row.key) return;
      row.key = key;
      row.bar.style.width = `${(100 * share) / largest}%`;
      row.count.textContent = count(one.dropped);
      row.share.textContent = ` ${percent(share)}`;
      row.number.title = `${count(one.dropped)} of ${count(one.total)} dropped, ${count(one.overruled)} decided by hand`;
      row.box.checked = shown;
      row.item.classList.toggle("off", !shown);
    });
  }
}
