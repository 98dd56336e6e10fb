/** Tabs as in the ARIA authoring practices. */

import { button, h } from "./dom";

interface Tab {
  name: string;
  element: HTMLElement;
  /** Called whenever the tab is chosen. */
  onShow?: () => void;
}

export class Tabs {
  readonly element: HTMLElement;
  private readonly buttons: HTMLButtonElement[];

  constructor(private readonly tabs: Tab[]) {
    this.buttons = tabs.map(({ name, element }, n) => {
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
    this.tabs.forEach((tab, n) => {
      const selected = tab.name === name;
      tab.element.hidden = !selected;
      this.buttons[n]?.setAttribute("aria-selected", String(selected));
      this.buttons[n]?.setAttribute("tabindex", selected ? "0" : "-1");
      if (selected) tab.onShow?.();
    });
  }
}
