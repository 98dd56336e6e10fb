/** Tabs, as the ARIA practices describe them. */

import { h } from "./dom";

interface Tab {
  name: string;
  element: HTMLElement;
  shown?: () => void;
}

export class Tabs {
  readonly element: HTMLElement;
  private readonly buttons: HTMLButtonElement[];

  constructor(private readonly tabs: Tab[]) {
    this.buttons = tabs.map(({ name, element }, n) => {
      const id = name.toLowerCase();
      element.id ||= `panel-${id}`;
      element.setAttribute("role", "tabpanel");
      const button = h(
        "button",
        { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": element.id, onclick: () => this.show(name) },
        name,
      );
      button.addEventListener("keydown", (event) => {
        const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
        if (by === 0) return;
        event.stopPropagation();
        event.preventDefault();
        const next = this.tabs[(n + by + this.tabs.length) % this.tabs.length];
        if (next !== undefined) this.show(next.name);
        this.buttons[(n + by + this.tabs.length) % this.tabs.length]?.focus();
      });
      return button;
    });
    this.element = h(
      "div",
      { className: "tabs" },
      h("div", { className: "tab-row", role: "tablist", "aria-label": "Samples" }, ...this.buttons),
      ...tabs.map((tab) => tab.element),
    );
    const [first] = tabs;
    if (first !== undefined) this.show(first.name);
  }

  show(name: string): void {
    this.tabs.forEach((tab, n) => {
      const on = tab.name === name;
      const was = !tab.element.hidden;
      tab.element.hidden = !on;
      const button = this.buttons[n];
      button?.setAttribute("aria-selected", String(on));
      if (button !== undefined) button.tabIndex = on ? 0 : -1;
      if (on && (!was || tab.shown !== undefined)) tab.shown?.();
    });
  }
}
