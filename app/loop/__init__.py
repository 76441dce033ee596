"""The tick: observe, forecast, predict, plan, check, bind, fill, deliver, and its audit lines."""
