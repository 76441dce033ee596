"""The control loop: observe, forecast, predict, plan, check, bind, commit, deliver."""
