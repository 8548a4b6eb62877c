// Search from disk. Browsers start no worker from a file: an empty frame runs the same script in its place.
// Material's plugin `offline` would fetch such a stand-in from a server, unless one of this name is given.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(script) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.documentElement.append(frame)
      const inside = frame.contentWindow
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.loaded = new Promise(loaded => {
        const element = inside.document.createElement("script")
        element.src = script
        element.onload = () => loaded(inside)
        inside.document.body.append(element)
      })
    }
    async postMessage(data) {
      (await this.loaded).dispatchEvent(new MessageEvent("message", { data }))
    }
  }
