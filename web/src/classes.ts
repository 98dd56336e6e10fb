/** The classes: legend, filter and share dropped, in one list. */

import { classColour } from "./colours";
import { count, h, percent, swatch } from "./dom";
import type { Model } from "./model";

export class Classes {
  readonly element: HTMLElement;
  private readonly list = h("ul", { className: "classes" });
  private readonly rows: { item: HTMLElement; box: HTMLInputElement; bar: HTMLElement; hand: HTMLElement; number: HTMLElement }[];

  constructor(private readonly model: Model) {
    const classes = model.info.classes;
    this.rows = classes.map((name, label) => {
      const box = h("input", { type: "checkbox", checked: true, "aria-label": `Show ${name}` });
      box.addEventListener("change", () => this.toggle(label, box.checked));
      const bar = h("span", { className: "bar" });
      const hand = h("span", { className: "bar hand" });
      const number = h("span", { className: "number" });
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
        h("span", { className: "track", "aria-hidden": "true" }, bar, hand),
        number,
      );
      return { item, box, bar, hand, number };
    });
    this.list.append(...this.rows.map((row) => row.item));
    const all = h("button", { type: "button", className: "quiet", onclick: () => model.hideClasses([]) }, "all");
    const none = h(
      "button",
      { type: "button", className: "quiet", onclick: () => model.hideClasses(classes.keys()) },
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
    const counts = this.model.perClass();
    const largest = Math.max(1e-9, ...counts.map((one) => (one.total ? one.dropped / one.total : 0)));
    counts.forEach((one, label) => {
      const row = this.rows[label];
      if (row === undefined) return;
      const share = one.total ? one.dropped / one.total : 0;
      row.bar.style.width = `${(100 * share) / largest}%`;
      row.number.replaceChildren(h("b", {}, count(one.dropped)), ` ${percent(share)}`);
      row.number.title = `${count(one.dropped)} of ${count(one.total)} dropped, ${count(one.overruled)} decided by hand`;
      row.hand.hidden = one.overruled === 0;
      row.box.checked = !this.model.hiddenClasses.has(label);
      row.item.classList.toggle("off", !row.box.checked);
    });
  }
}
