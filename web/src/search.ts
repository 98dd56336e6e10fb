/** Search for samples by id. */

import { count, h, icon } from "./dom";
import type { Model } from "./model";

const LISTED = 8;

export class Search {
  readonly element: HTMLElement;
  readonly input: HTMLInputElement;
  private readonly list = h("ul", { className: "found", id: "found", role: "listbox", "aria-label": "Matches", hidden: true });
  private rows: number[] = [];

  constructor(private readonly model: Model) {
    this.input = h("input", {
      ...{ type: "search", id: "search", placeholder: "Find by id ( / )", "aria-label": "Find samples by id", "aria-controls": "found" },
      ...{ autocomplete: "off", spellcheck: "false" },
      oninput: () => this.search(),
      onkeydown: ({ key }: KeyboardEvent) => (key === "Enter" ? this.accept() : key === "Escape" ? this.close() : undefined),
      onblur: () => window.setTimeout(() => (this.list.hidden = true), 150),
    });
    this.element = h("div", { className: "search", role: "search" }, icon("search"), this.input, this.list);
  }

  private search(): void {
    const text = this.input.value.trim();
    this.rows = text === "" ? [] : this.model.find(text);
    const items = this.rows.slice(0, LISTED).map((row) => {
      const [id, name] = [h("span", { className: "id" }, this.model.id(row)), h("span", { className: "note" }, this.model.className(row))];
      return h("li", { role: "option", onmousedown: () => this.model.setFocus(row) }, id, name);
    });
    const more = this.rows.length > LISTED ? `${count(this.rows.length)} matches: press Enter to list them` : "";
    const note = text !== "" && this.rows.length === 0 ? "no match" : more;
    if (note !== "") items.push(h("li", { className: "note", role: "option", "aria-disabled": "true" }, note));
    this.list.replaceChildren(...items);
    this.list.hidden = items.length === 0;
  }

  private accept(): void {
    const [first] = this.rows;
    if (first === undefined) return;
    if (this.rows.length > 1) this.model.pick(this.rows, `matches of “${this.input.value.trim()}”`);
    this.model.setFocus(first);
    this.input.value = "";
    this.close();
  }

  private close(): void {
    this.list.hidden = true;
    this.input.blur();
  }
}
