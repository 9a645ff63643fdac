// A link to something folded, or inside of something folded, unfolds it.
function unfold() {
  const target = document.getElementById(location.hash.slice(1));
  for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  target?.scrollIntoView();
}
addEventListener("hashchange", unfold);
unfold();

// A click on the head of a column sorts the rows by it, a second one the other way round; what is not known comes last.
const size = (cell) => parseFloat(cell.textContent.replace("−", "-").replace(/,/g, "").replace(/^[^\d.-]+/, ""));
for (const head of document.querySelectorAll("table.sortable th")) {
  const button = document.createElement("button");
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    const body = head.closest("table").tBodies[0], column = head.cellIndex;
    const sign = head.ariaSort === "ascending" ? -1 : 1;
    const rows = [...body.rows].map((row) => ({row, text: row.cells[column].textContent, number: size(row.cells[column])}));
    const is_numeric = rows.some(({number}) => !isNaN(number));
    rows.sort((a, b) => is_numeric ? isNaN(a.number) - isNaN(b.number) || sign * (a.number - b.number) || 0 : sign * a.text.localeCompare(b.text));
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.ariaSort = sign > 0 ? "ascending" : "descending";
    body.append(...rows.map(({row}) => row));
  });
}
