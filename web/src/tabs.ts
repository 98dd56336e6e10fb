/** Tabs as in the ARIA authoring practices. */

import { button, h, perFrame, setAttributes } from "./dom";
import type { Model, Topic } from "./model";

interface Tab {
  name: string;
  element: HTMLElement;
  /** Called whenever the tab is chosen and, while it is shown, with changes of these topics. */
  onShow?: () => unknown;
  topics?: Topic[];
}

export class Tabs {
  readonly element: HTMLElement;
  /** The name of the tab that is shown. */
  current = "";
  private readonly buttons: HTMLButtonElement[];

  constructor(model: Model, private readonly tabs: Tab[]) {
    this.buttons = tabs.map(({ name, element, onShow, topics }, n) => {
      if (topics !== undefined) model.on(topics, perFrame(() => (this.current === name ? onShow?.() : undefined)));
      const id = name.toLowerCase();
      element.id ||= `panel-${id}`;
      element.setAttribute("role", "tabpanel");
      const tab = button("", () => this.show(name), { role: "tab", id: `tab-${id}`, "aria-controls": element.id }, name);
      tab.addEventListener("keydown", (event) => {
        const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
        if (step === 0) return;
        event.stopPropagation();
        event.preventDefault();
        const next = this.buttons[(n + step + tabs.length) % tabs.length];
        next?.click();
        next?.focus();
      });
      return tab;
    });
    this.element = h(
      "div",
      { className: "tabs" },
      h("div", { className: "tab-row", role: "tablist", "aria-label": "Samples" }, ...this.buttons),
      ...tabs.map((tab) => tab.element),
    );
    this.show(tabs[0]?.name ?? "");
  }

  show(name: string): void {
    this.current = name;
    this.tabs.forEach((tab, n) => {
      const selected = tab.name === name;
      tab.element.hidden = !selected;
      setAttributes(this.buttons[n] as Element, { "aria-selected": String(selected), tabindex: selected ? 0 : -1 });
      if (selected) tab.onShow?.();
    });
  }
}
