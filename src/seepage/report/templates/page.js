"use strict";
(() => {
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));
  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };

  // Copying a command: the text that is shown, and nothing else.
  const copy = async (button) => {
    const text = document.getElementById(button.dataset.copy).textContent;
    let done = false;
    try { await navigator.clipboard.writeText(text); done = true; } catch (_) { /* no permission: select instead */ }
    if (!done) {
      const area = make("textarea", { "aria-hidden": "true", class: "unseen" });
      area.value = text;
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
    }
    button.dataset.copied = text;
    say(done ? "Command copied." : "Select the command and copy it by hand.");
    button.firstChild.textContent = done ? "Copied" : "Select it";
    setTimeout(() => { button.firstChild.textContent = "Copy"; }, 2000);
  };
  const status = make("p", { role: "status", class: "unseen" });
  document.body.append(status);
  const say = (text) => { status.textContent = text; };
  for (const button of all("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", () => copy(button));
  }

  // A pair, large: original, rebuilt, and one laid over the other behind a slider.
  const viewer = make("dialog", { class: "viewer", "aria-label": "One pair, large" });
  document.body.append(viewer);
  const zoom = (figure) => {
    const images = all("img", figure);
    if (images.length < 2) return;
    const [original, rebuilt] = images.map((image) => make("img", { src: image.src, alt: image.alt }));
    const below = make("img", { src: images[0].src, alt: "" });
    const above = make("img", { src: images[1].src, alt: "", class: "above" });
    const slider = make("input", { type: "range", min: "0", max: "100", value: "50", id: "viewer-slider" });
    const cut = () => { above.style.clipPath = `inset(0 0 0 ${slider.value}%)`; };
    slider.addEventListener("input", cut);
    cut();
    const close = make("button", { type: "button" }, "Close");
    close.addEventListener("click", () => viewer.close());
    viewer.replaceChildren(
      make("div", { class: "viewer-pair" },
        make("figure", {}, original, make("figcaption", {}, "original")),
        make("figure", {}, rebuilt, make("figcaption", {}, "rebuilt")),
        make("figure", {}, make("div", { class: "over" }, below, above),
          make("figcaption", {}, make("label", { for: "viewer-slider" }, "original to the left of the slider, rebuilt to the right"), slider))),
      make("p", { class: "soft" }, all("figcaption", figure).map((c) => c.innerText.replace(/\n+/g, " · ")).join(" ")),
      close);
    viewer.classList.toggle("hard", figure.closest(".hard") !== null);
    viewer.showModal();
    slider.focus();
  };
  for (const figure of all("[data-pair]")) {
    if (all("img", figure).length < 2) continue;
    const tiles = figure.querySelector(".tiles");
    const label = figure.querySelector("img").alt.replace("Original", "Enlarge");
    const button = make("button", { type: "button", class: "zoom", "aria-label": label });
    tiles.replaceWith(button);
    button.append(tiles);
    button.addEventListener("click", () => zoom(figure));
  }

  // Sorting and filtering the examples of one attack.
  const shown = (item, wanted) =>
    (!wanted.exact || item.dataset.exact === "1") && (!wanted.claimed || item.dataset.claimed === "1") &&
    (wanted.client === "" || item.dataset.client === wanted.client) && (wanted.class === "" || item.dataset.class === wanted.class);
  const orders = {
    worst: (a, b) => b.dataset.exact - a.dataset.exact || b.dataset.leak - a.dataset.leak,
    best: (a, b) => a.dataset.exact - b.dataset.exact || a.dataset.leak - b.dataset.leak,
    client: (a, b) => a.dataset.client - b.dataset.client || a.dataset.index - b.dataset.index,
    class: (a, b) => a.dataset.class.localeCompare(b.dataset.class) || a.dataset.index - b.dataset.index,
    number: (a, b) => a.dataset.index - b.dataset.index,
  };
  let count = 0;
  const choice = (label, options) => {
    const id = `choice-${count += 1}`;
    const select = make("select", { id }, ...options.map(([value, text]) => make("option", { value }, text)));
    return [make("label", { for: id }, label, " "), select];
  };
  const tick = (label) => {
    const id = `choice-${count += 1}`;
    const box = make("input", { type: "checkbox", id });
    return [make("span", {}, box, " ", make("label", { for: id }, label)), box];
  };
  for (const article of all("[data-examples]")) {
    const items = all("[data-item]", article);
    if (items.length < 2) continue;
    const values = (name) => [...new Set(items.map((item) => item.dataset[name]))].sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
    const [sortLabel, sort] = choice("Order", [["worst", "most leaked first"], ["best", "least leaked first"], ["client", "by client"], ["class", "by class"], ["number", "by number"]]);
    const [clientLabel, client] = choice("Client", [["", "all"], ...values("client").map((v) => [v, v])]);
    const [classLabel, label] = choice("Class", [["", "all"], ...values("class").map((v) => [v, v])]);
    const [exactPart, exact] = tick("exact only");
    const [claimedPart, claimed] = tick("claimed only");
    const told = make("span", { role: "status", class: "soft" });
    const apply = () => {
      const wanted = { exact: exact.checked, claimed: claimed.checked, client: client.value, class: label.value };
      let left = 0;
      for (const item of items) { item.hidden = !shown(item, wanted); left += !item.hidden; }
      for (const group of new Set(items.map((item) => item.parentElement)))
        group.append(...all(":scope > [data-item]", group).sort(orders[sort.value]));
      told.textContent = `${left} of ${items.length} shown`;
    };
    for (const control of [sort, client, label, exact, claimed]) control.addEventListener("change", apply);
    const bar = make("div", { class: "bar", role: "group", "aria-label": "Order and choice of examples" },
      make("span", {}, sortLabel, sort), make("span", {}, clientLabel, client), make("span", {}, classLabel, label), exactPart, claimedPart, told);
    (article.querySelector("[data-first]") || items[0].closest("details") || items[0].parentElement).before(bar);
    apply();
  }

  // What is unfolded stands in the address: #place;open=id,id
  const folds = all("details[id]");
  const [place, rest] = decodeURIComponent(location.hash.slice(1)).split(";open=");
  const open = new Set((rest || "").split(",").filter(Boolean));
  for (const fold of folds) if (open.has(fold.id)) fold.open = !fold.hasAttribute("data-usual");
  const target = place && document.getElementById(place);
  if (target) {
    for (let up = target; up; up = up.parentElement) if (up.tagName === "DETAILS") up.open = true;
    target.scrollIntoView();
  }
  let printing = false;
  const remember = () => {
    if (printing) return;
    const ids = folds.filter((fold) => fold.open !== fold.hasAttribute("data-usual")).map((fold) => fold.id);
    const now = location.hash.slice(1).split(";open=")[0];
    history.replaceState(null, "", ids.length ? `#${now};open=${ids.join(",")}` : now ? `#${now}` : location.pathname + location.search);
  };
  for (const fold of folds) fold.addEventListener("toggle", remember);

  // Paper has no folds.
  let folded = [];
  addEventListener("beforeprint", () => { printing = true; folded = all("details:not([open])"); for (const fold of folded) fold.open = true; });
  addEventListener("afterprint", () => { for (const fold of folded) fold.open = false; setTimeout(() => { printing = false; }, 100); });
})();
